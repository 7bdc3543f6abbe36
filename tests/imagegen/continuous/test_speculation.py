"""Speculation over head time: every state has the law of plain sampling, and fewer calls of the head make it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mmspec.core.round.keys import Keys, Purpose
from mmspec.imagegen.continuous.head_sampling.head import CleanTokenDrafter, Gaussian, Head, sample
from mmspec.imagegen.continuous.head_sampling.speculation import (
    RatioCoupling,
    ReflectionCoupling,
    SpeculativeSample,
    _SpeculativeSampler,
    speculate,
)
from mmspec.imagegen.continuous.mar.transformer import MAR
from tests.core.round.rules.quadrature import phi
from tests.imagegen.continuous.heads import WaveHead
from tests.imagegen.continuous.tiny import SIZES, redrawn

STEPS, DIM = 6, 2


def request(
    rows: int, dim: int = DIM, steps: int = STEPS, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Keys]:
    """z, initial, noise, uniform and keys of as many tokens, conditioned alike."""
    keys = Keys.of(seed, rows)
    z = torch.cat((torch.arange(rows)[:, None], torch.tensor([0.4, -0.7])[:dim].expand(rows, -1)), 1)
    initial, noise = keys.normal(Purpose.DRAFT, dim), keys.normal(Purpose.DRAFT, steps, dim, step=1)
    return z, initial, noise, keys.uniform(Purpose.ACCEPT, steps), keys


# two drafted steps in 1-D, point by point


class Forced:
    """A walk of 4 steps from one point, of which steps 2 and 1 are drafted and each made to stand or fall."""

    def __init__(self, window: int, stands: tuple[bool, bool], rows: int):
        self.head, self.window, self.rows = WaveHead(4, 1), window, rows
        self.z, initial, noise, _, _ = request(rows, 1, 4)
        self.z = self.z.double()
        self.initial, self.noise = initial.double()[:1].expand(rows, 1), noise.double()[:1].repeat(rows, 1, 1)
        self.uniform = torch.ones(rows, 4, dtype=torch.float64)
        for step, forced in zip((2, 1), stands, strict=True):
            self.uniform[:, step] = 0.0 if forced else 1.0

    def run(self, noise_2: Tensor | float, noise_1: Tensor | float) -> tuple[Tensor, Tensor, SpeculativeSample]:
        """x_2 and x_1, float64 [R] both, for the noise of the two steps."""
        self.head.watch(self.rows, torch.float64)
        self.noise[:, 2, 0], self.noise[:, 1, 0] = noise_2, noise_1
        made = speculate(
            self.head, self.z, self.initial, self.noise, self.uniform, self.head.step_drafter(), window=self.window
        )
        return self.head.seen[:, 1, 0], made.trajectory.state[:, 0], made


def path_density(window: int, x_2: Tensor, x_1: Tensor) -> Tensor:
    """The density of the two states under speculation, float64 [R]: the sum over all ways to come there. Each state is an
    affine function of its own noise once it is settled which drafts stand, so the noise that leads there is solved for.
    """
    total = torch.zeros_like(x_2)
    for stands in [(True, True), (True, False), (False, True), (False, False)]:
        walk = Forced(window, stands, len(x_2))
        start, _, _ = walk.run(0.0, 0.0)
        slope_2 = walk.run(1.0, 0.0)[0] - start
        noise_2 = (x_2 - start) / slope_2
        _, start, _ = walk.run(noise_2, 0.0)
        slope_1 = walk.run(noise_2, 1.0)[1] - start
        noise_1 = (x_1 - start) / slope_1
        found_2, found_1, made = walk.run(noise_2, noise_1)
        assert (found_2 - x_2).abs().max() < 1e-9 and (found_1 - x_1).abs().max() < 1e-9
        chance = made.probability[:, [2, 1]]
        assert chance[:, 0].isfinite().all()
        # a window of two draws step 1 plainly once step 2 stands; that way counts once
        chance = torch.where(torch.tensor(stands), chance.nan_to_num(1.0), 1 - chance.nan_to_num(1.0)).prod(-1)
        total += phi(noise_2, 0.0, 1.0) / slope_2.abs() * phi(noise_1, 0.0, 1.0) / slope_1.abs() * chance
    return total


def plain_density(x_2: Tensor, x_1: Tensor) -> Tensor:
    walk = Forced(1, (True, True), 1)
    first = walk.head.gaussian(walk.initial, 3, walk.z)
    x_3 = first.mean + first.log_scale.exp() * walk.noise[:, 3]
    z = walk.z.expand(len(x_2), -1)
    one, two = walk.head.gaussian(x_3, 2, walk.z), walk.head.gaussian(x_2[:, None], 1, z)
    return phi(x_2, one.mean[0], float(one.log_scale.exp())) * phi(x_1, two.mean[:, 0], float(two.log_scale.exp()[0]))


def two_step_error(window: int) -> float:
    """Total variation over both states, by sums on a grid that reaches 8 standard deviations."""
    count = 61
    unit = torch.linspace(-8, 8, count, dtype=torch.float64)
    walk = Forced(1, (True, True), 1)
    first = walk.head.gaussian(walk.initial, 3, walk.z)
    x_3 = first.mean + first.log_scale.exp() * walk.noise[:, 3]
    one = walk.head.gaussian(x_3, 2, walk.z)
    x_2 = one.mean[0] + one.log_scale.exp()[0] * unit
    two = walk.head.gaussian(x_2[:, None], 1, walk.z.expand(count, -1))
    x_1 = two.mean + two.log_scale.exp() * unit  # [61, 61], around what follows each x_2
    step = float(one.log_scale.exp()[0] * two.log_scale.exp()[0]) * float(unit[1] - unit[0]) ** 2
    x_2 = x_2[:, None].expand_as(x_1).flatten()
    return float((path_density(window, x_2, x_1.flatten()) - plain_density(x_2, x_1.flatten())).abs().sum() * step / 2)


@pytest.mark.parametrize("window", (2, 3, 4))
def test_two_drafted_steps_have_plain_samplings_joint_density(window: int) -> None:
    assert two_step_error(window) < 1e-10


def _plain_draw(
    self: _SpeculativeSampler, states: Tensor, drafted: Gaussian, law: Gaussian, step: Tensor, count: Tensor
) -> Tensor:
    return _follow(self, states, Gaussian(drafted.mean[:, :0], drafted.log_scale[:, :0]), law, step, count)


def _always_the_first(
    self: _SpeculativeSampler, states: Tensor, drafted: Gaussian, law: Gaussian, step: Tensor
) -> tuple[Tensor, Tensor]:
    """A second draft is judged by the law at the state before the first."""
    law.mean[:, 1:] = law.mean[:, :1].clone()
    return _verify(self, states, drafted, law, step)


_follow, _verify, _chance = _SpeculativeSampler._follow, _SpeculativeSampler._verify, ReflectionCoupling.probability
MUTANTS = {
    "a rejected step is drawn from the target": (_SpeculativeSampler, "_follow", _plain_draw),
    "judged at the wrong state": (_SpeculativeSampler, "_verify", _always_the_first),
    "not mirrored": (ReflectionCoupling, "replacement", lambda self, x, q, p, keys: p.mean + x - q.mean),
    "3 % too lenient": (
        ReflectionCoupling,
        "probability",
        lambda self, x, q, p: (1.03 * _chance(self, x, q, p)).clamp_max(1),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_walk_shows(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    assert two_step_error(3) > 1e-3


# all steps, by samples


def energy(one: Tensor, other: Tensor) -> float:
    """The energy statistic of two samples [n] of a line, in units of its mean where both have one law."""
    n, m = len(one), len(other)
    both, order = torch.cat((one, other)).double().sort()
    steps = torch.cat((torch.full((n,), 1 / n), torch.full((m,), -1 / m))).double()[order].cumsum(0)
    distance = 2 * (steps[:-1].square() * both.diff()).sum()
    rank = torch.arange(1, n + m + 1, dtype=torch.float64)
    spread = 2 * (both * (2 * rank - n - m - 1)).sum() / (n + m) ** 2  # E |X - X'|
    return float(n * m / (n + m) * distance / spread)


ROWS = 20_000
SETTINGS = {
    "table": dict(network_variance=False),
    "predicted scales": dict(network_variance=True),
    "table, guided": dict(network_variance=False, guided=True, temperature=0.8),
    "predicted scales, guided": dict(network_variance=True, guided=True, temperature=0.8),
    "a last step that is drawn": dict(network_variance=True, last_noise=True),
}


def paths(setting: dict, seed: int, speculated: bool, uniform: Tensor | None = None) -> Tensor:
    """float32 [R, 2 T, d], every state of every row, the token, and what each step added in units of its own scale, which
    shows a law that is wrong given the state before.
    """
    setting = dict(setting)
    guided, temperature = setting.pop("guided", False), setting.pop("temperature", 1.0)
    head = WaveHead(STEPS, DIM, **setting)
    head.watch(ROWS)
    z, initial, noise, accept, keys = request(ROWS, seed=seed)
    guidance = None
    if guided:
        z, guidance = torch.stack((z, torch.cat((z[:, :1], 0.5 - z[:, 1:]), 1))), torch.full((ROWS,), 1.7)
    how = dict(guidance=guidance, temperature=temperature)
    if speculated:
        accept = accept if uniform is None else uniform
        made = speculate(
            head,
            z,
            initial,
            noise,
            accept,
            head.step_drafter(),
            window=4,
            keys=keys.at(torch.zeros(ROWS, 1).long()),
            **how,
        )
        assert made.calls <= STEPS and float(made.accepted.double().mean()) > 0.3
        walk = made.trajectory
    else:
        walk = sample(head, z, initial, noise, **how)
    seen, added = torch.cat((walk.state[:, None], head.seen[:, 1:]), 1), []
    for step in range(1, STEPS):
        law = head.gaussian(seen[:, step], step, z, guidance)
        added.append((seen[:, step - 1] - law.mean) / law.log_scale.exp() / temperature)
    return torch.cat((seen, walk.value[:, None], torch.stack(added, 1)), 1)


def worst(one: Tensor, other: Tensor) -> float:
    """The largest energy statistic over directions in the space of whole paths, each axis among them."""
    one, other = one.flatten(1), other.flatten(1)
    scale = other.std(0).clamp_min(1e-9)
    random = torch.randn(one.shape[1], 8, generator=torch.Generator().manual_seed(0))
    directions = torch.cat((torch.eye(one.shape[1])[:, : one.shape[1]], random), 1)
    first, second = one / scale @ directions, other / scale @ directions
    moving = [k for k in range(directions.shape[1]) if second[:, k].std() > 1e-6]
    return max(energy(first[:, k], second[:, k]) for k in moving)


LIMIT = 12.0  # twelve times its mean, which two samples of one law exceed less than once in ten thousand


@pytest.mark.parametrize("name", SETTINGS)
def test_whole_paths_have_the_distribution_of_plain_sampling(name: str) -> None:
    assert worst(paths(SETTINGS[name], 1, True), paths(SETTINGS[name], 2, False)) < LIMIT


@pytest.mark.parametrize("name", ("table", "predicted scales"))
def test_accepting_every_draft_is_detected(name: str) -> None:
    taken = paths(SETTINGS[name], 1, True, torch.zeros(ROWS, STEPS, dtype=torch.float64))
    assert worst(taken, paths(SETTINGS[name], 2, False)) > 3 * LIMIT


def test_uniforms_made_of_the_noise_show() -> None:
    noise = request(ROWS, seed=1)[2]
    shared = torch.special.ndtr(noise[..., 0].double())
    assert worst(paths(SETTINGS["table"], 1, True, shared), paths(SETTINGS["table"], 2, False)) > 3 * LIMIT


def test_drafts_of_predicted_scales_judged_by_the_mirror_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RatioCoupling, "probability", ReflectionCoupling.probability)
    monkeypatch.setattr(RatioCoupling, "replacement", ReflectionCoupling.replacement)
    setting = SETTINGS["predicted scales"]
    assert worst(paths(setting, 1, True), paths(setting, 2, False)) > LIMIT


@torch.no_grad()
@pytest.mark.parametrize("guided", (False, True))
def test_the_mar_head_keeps_its_distribution(guided: bool) -> None:
    head, rows, made = small_mar_head(), 6_000, []
    z = torch.tensor([[[0.3]], [[-0.4]]]).expand(2, rows, 24)
    how = dict(guidance=torch.full((rows,), 2.0)) if guided else {}
    for seed in (1, 2):
        _, initial, noise, uniform, keys = request(rows, head.dim, head.steps, seed)
        given = (head, z if guided else z[0], initial, noise)
        if seed == 2:
            made.append(sample(*given, **how))
            continue
        found = speculate(*given, uniform, head.step_drafter(), window=3, keys=keys.child(0), **how)
        assert float(found.accepted.double().mean()) > 0.3
        made.append(found.trajectory)
    one, other = (torch.stack((walk.state, walk.value), 1) for walk in made)
    assert worst(one, other) < LIMIT


def small_mar_head() -> Head:
    """MAR's own network and schedule, 8 steps of which none starts from pure noise, with weights that keep tokens small."""
    model = redrawn(MAR(SIZES), 3, std=0.12)
    return model.head("ddim8")


# what else it promises


@pytest.mark.parametrize("setting", [dict(), dict(network_variance=True), dict(last_noise=True)])
def test_a_window_of_1_is_plain_sampling(setting: dict) -> None:
    head = WaveHead(STEPS, DIM, **setting)
    z, initial, noise, uniform, keys = request(50)
    made = speculate(head, z, initial, noise, uniform, head.step_drafter(), window=1, temperature=0.7)
    plain = sample(head, z, initial, noise, temperature=0.7)
    for one, other in (
        (made.trajectory.value, plain.value),
        (made.trajectory.state, plain.state),
        (made.trajectory.last.mean, plain.last.mean),
        (made.trajectory.log_det, plain.log_det),
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert made.calls == STEPS and made.evaluated == 50 * STEPS and (made.accepted == 0).all()


@pytest.mark.parametrize("window", (2, 3, 4, 9))
@pytest.mark.parametrize("last_noise", (False, True))
def test_a_prediction_that_holds_makes_every_draft_stand_on_the_plain_path(window: int, last_noise: bool) -> None:
    head = WaveHead(STEPS, DIM, bend=0.0, last_noise=last_noise)
    z, initial, noise, _, _ = request(50)
    made = speculate(head, z, initial, noise, torch.full((50, STEPS), 0.999), head.step_drafter(), window=window)
    plain = sample(head, z, initial, noise)
    assert made.calls == 1 + math.ceil((STEPS - 1) / window)
    torch.testing.assert_close(made.trajectory.value, plain.value, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(made.trajectory.log_det, plain.log_det, rtol=1e-4, atol=1e-4)


def test_a_rejected_draft_costs_no_more_than_plain_sampling() -> None:
    head = WaveHead(STEPS, DIM)
    z, initial, noise, _, _ = request(50)
    made = speculate(head, z, initial, noise, torch.ones(50, STEPS), head.step_drafter(), window=4)
    assert made.calls == STEPS and (made.accepted == 0).all()


@pytest.mark.parametrize("network_variance", (False, True))
def test_rows_do_not_depend_on_the_batch(network_variance: bool) -> None:
    head = WaveHead(STEPS, DIM, network_variance=network_variance)
    z, initial, noise, uniform, keys = request(60)
    run: Callable = lambda rows: speculate(  # noqa: E731
        head,
        z[rows],
        initial[rows],
        noise[rows],
        uniform[rows],
        head.step_drafter(),
        window=3,
        keys=Keys(keys.seeds[rows]),
    )
    whole, some = run(torch.arange(60)), torch.tensor([3, 17, 58])
    part = run(some)
    torch.testing.assert_close(part.trajectory.value, whole.trajectory.value[some], rtol=1e-4, atol=1e-5)
    assert torch.equal(part.accepted, whole.accepted[some])
    assert whole.accepted.unique().numel() > 1  # rows stood at different steps


def test_wrong_settings_are_refused() -> None:
    head = WaveHead(STEPS, DIM, network_variance=True)
    z, initial, noise, uniform, _ = request(3)
    run: Callable = lambda head=head, step_drafter=head.step_drafter(), **how: speculate(  # noqa: E731, B008
        head, z, initial, noise, uniform, step_drafter, **how
    )
    with pytest.raises(ValueError, match="window: expected at least 1 state, got 0"):
        run(window=0)
    with pytest.raises(ValueError, match="temperature: expected a number above 0 to speculate, got 0"):
        run(temperature=0.0)
    with pytest.raises(ValueError, match="keys: expected a row per token for a head that predicts its scale"):
        run()
    table = WaveHead(STEPS, DIM)
    other = CleanTokenDrafter(table.pull, table.push, table.low + 0.1, table.high + 0.1)
    with pytest.raises(ValueError, match="step_drafter: expected the head's own scales"):
        run(table, other)
