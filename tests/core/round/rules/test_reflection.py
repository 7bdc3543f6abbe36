"""Rules for Gaussians: the emitted vectors have the target's law, round after round."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law, root_only, run_of
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import GaussianBlock, Reflection, Rule
from mmspec.core.round.tree import chain
from tests.core.round.rules.drafting import round_of

ROWS, DEPTH, WIDTH, SCALE = 20_000, 3, 2, 0.7
TREE = chain(DEPTH)


def target_mean(x: Tensor) -> Tensor:
    return 0.5 * x + torch.tensor([0.3, -0.2])


def drafter_mean(x: Tensor) -> Tensor:
    return 0.3 * x + torch.tensor([0.5, 0.1])


def drafted(last: Tensor, keys: Keys, length: Tensor | None = None) -> tuple[Draft, Evidence]:
    noise = keys.normal(Purpose.DRAFT, DEPTH, WIDTH)
    values = [last]
    for depth in range(DEPTH):
        values.append(drafter_mean(values[-1]) + SCALE * noise[:, depth])
    value = torch.stack(values, 1)
    scale = torch.full((len(last), DEPTH + 1, 1), SCALE)
    valid = None if length is None else torch.arange(DEPTH + 1) <= length[:, None]
    law = Law("without_replacement", torch.tensor([0, 1, 2, -1]), mean=drafter_mean(value[:, :-1]), scale=scale[:, :-1])
    return Draft(value, TREE, law, valid), Evidence(mean=target_mean(value), scale=scale)


def decode(length: int, ragged: bool = False, keys: Keys | None = None, rule: Rule | None = None) -> Tensor:
    keys = Keys.of(3, ROWS) if keys is None else keys
    rows = len(keys.seeds)
    out, count = torch.zeros(rows, length + DEPTH + 1, WIDTH), torch.zeros(rows, dtype=torch.long)
    last = torch.zeros(rows, WIDTH)
    while int(count.min()) < length:
        cut = (last[:, 0] > 0).long() + 1 if ragged else None
        draft, evidence = drafted(last, keys, cut)
        verdict = round_of(rule or Reflection(), draft, evidence, keys)
        run, emitted = run_of(draft, verdict)
        at = (count.clamp_max(length)[:, None] + torch.arange(DEPTH + 1))[..., None].expand(-1, -1, WIDTH)
        out.scatter_(1, at, torch.where((count < length)[:, None, None], run, out.gather(1, at)))
        last, count, keys.round = verdict.correction, count + emitted, keys.round + 1
    return out[:, :length]


def innovations(values: Tensor) -> Tensor:
    """What should be independent standard normals: every value against the target's law given the one before."""
    before = torch.cat((torch.zeros_like(values[:, :1]), values[:, :-1]), 1)
    return ((values - target_mean(before)) / SCALE).double()


def kolmogorov(sample: Tensor) -> float:
    """sqrt(n) times the Kolmogorov-Smirnov distance from the standard normal."""
    ordered = sample.sort().values
    steps = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    cdf = torch.special.ndtr(ordered)
    return float(torch.maximum((steps[1:] - cdf).max(), (cdf - steps[:-1]).max()) * len(ordered) ** 0.5)


RULES = (Reflection, GaussianBlock)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ragged", (False, True), ids=("full drafts", "drafts cut short"))
def test_several_rounds_have_the_targets_distribution(ragged: bool, rule: type[Rule]) -> None:
    noise = innovations(decode(5, ragged, rule=rule()))
    for position in range(5):
        for axis in range(WIDTH):
            assert kolmogorov(noise[:, position, axis]) < 2.5  # 7e-6 of all samples exceed this
    flat = noise.flatten(1)
    assert flat.mean(0).abs().max() < 5 / ROWS**0.5
    covariance = flat.T @ flat / ROWS - torch.eye(flat.shape[1])
    assert covariance.abs().max() < 7 / ROWS**0.5
    # squares too: dependence that leaves no correlation
    square = flat.square() - 1
    assert (square.T @ square / ROWS - 2 * torch.eye(flat.shape[1])).fill_diagonal_(0).abs().max() < 14 / ROWS**0.5


def test_shared_noise_shows() -> None:
    class Shared(Keys):
        def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
            return Keys.uniform(self, Purpose.DRAFT if purpose == Purpose.ACCEPT else purpose, *shape, step=step)

    noise = innovations(decode(5, keys=Shared(Keys.of(3, ROWS).seeds)))
    assert max(kolmogorov(noise[:, i, a]) for i in range(5) for a in range(WIDTH)) > 5


@pytest.mark.parametrize("gap", (0.0, 0.5, 1.5))
def test_acceptance_is_twice_the_tail_of_half_the_gap(gap: float) -> None:
    rows = 40_000
    keys = Keys.of(1, rows)
    q, p = torch.zeros(rows, 1, 3), torch.full((rows, 2, 3), gap * SCALE / 3**0.5)
    scale = torch.full((rows, 2, 1), SCALE)
    x = q + SCALE * keys.normal(Purpose.DRAFT, 1, 3)
    draft = Draft(
        torch.cat((q, x), 1), chain(1), Law("without_replacement", torch.tensor([0, -1]), mean=q, scale=scale[:, :1])
    )
    verdict = round_of(Reflection(), draft, Evidence(mean=p, scale=scale), keys)
    expected = math.erfc(gap / 2 / 2**0.5)
    assert abs(float(verdict.depth.double().mean()) - expected) < 5 * (expected * (1 - expected) / rows) ** 0.5 + 1e-9


@pytest.mark.parametrize("rule", RULES)
def test_different_scales_are_never_coupled(rule: type[Rule]) -> None:
    rows = 20_000
    keys = Keys.of(1, rows)
    draft, evidence = drafted(torch.zeros(rows, WIDTH), keys)
    evidence.scale = evidence.scale * 1.5
    verdict = round_of(rule(), draft, evidence, keys)
    assert (verdict.depth == 0).all()
    noise = (verdict.correction - target_mean(torch.zeros(rows, WIDTH))) / (1.5 * SCALE)
    assert kolmogorov(noise[:, 0].double()) < 2.5


@pytest.mark.parametrize("rule", RULES)
def test_a_lone_root_and_equal_distributions(rule: type[Rule]) -> None:
    keys = Keys.of(1, 50)
    mean, scale = torch.randn(50, 1, WIDTH), torch.full((50, 1, 1), SCALE)
    verdict = round_of(rule(), root_only(torch.zeros(50, WIDTH)), Evidence(mean=mean, scale=scale), keys)
    assert verdict.correction.shape == (50, WIDTH) and (verdict.node == 0).all()
    draft, evidence = drafted(torch.zeros(50, WIDTH), keys)
    evidence.mean = torch.cat((draft.law.mean, evidence.mean[:, -1:]), 1)
    verdict = round_of(rule(), draft, evidence, keys)
    assert (verdict.depth == DEPTH).all() and verdict.correction.isfinite().all()


@pytest.mark.parametrize("rule", RULES)
def test_nothing_is_accepted_after_a_bad_node(rule: type[Rule]) -> None:
    keys = Keys.of(1, 50)
    draft, evidence = drafted(torch.zeros(50, WIDTH), keys)
    evidence.bad = torch.zeros(50, DEPTH + 1, dtype=torch.bool)
    evidence.bad[:, 1] = True
    assert (round_of(rule(), draft, evidence, keys).depth <= 1).all()
