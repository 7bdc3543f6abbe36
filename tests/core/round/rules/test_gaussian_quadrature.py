"""Rules for Gaussians by quadrature: what is emitted has the target's density, point by point, and acceptance its formula."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import GaussianBlock, Reflection, Rule, Weights, gaussian
from mmspec.core.round.tree import chain
from mmspec.kernels.block_verification import excess_mass
from mmspec.kernels.block_verification import gaussian_block_thresholds as thresholds
from tests.core.round.rules.quadrature import panels, phi, split

SCALE = 0.7


def one_value(x: Tensor, q: Tensor, p: Tensor) -> tuple[Draft, Evidence]:
    """Rows x float64 [R, d] drafted from N(q, SCALE^2) and judged by N(p, SCALE^2)."""
    rows = len(x)
    scale = torch.full((rows, 2, 1), SCALE, dtype=torch.float64)
    law = Law("without_replacement", torch.tensor([0, -1]), mean=q.expand(rows, 1, -1), scale=scale[:, :1])
    value = torch.stack((torch.zeros_like(x), x), 1)
    return Draft(value, chain(1), law), Evidence(mean=p.expand(rows, 2, -1), scale=scale)


def emitted(x: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """What Reflection makes of each row: its chance to stand, float64 [R], and what takes its place, float64 [R, d]."""
    draft, evidence = one_value(x, q, p)
    weights = Reflection().weigh(evidence, draft)
    verdict = Reflection().select(weights, torch.full((len(x), 2), 1.0), draft)
    verdict = Reflection().resample(evidence, draft, weights, verdict, Keys.of(0, len(x)))
    return weights.threshold[:, 1], verdict.correction


def reflected_error(q: Tensor, p: Tensor) -> float:
    """Total variation between what Reflection emits and N(p, SCALE^2), on a grid. Its replacement is an isometry and its own
    inverse with the laws exchanged, which is checked, so two points contribute to each density.
    """
    axis = torch.linspace(-6, 6, 121, dtype=torch.float64) * SCALE
    y = torch.cartesian_prod(*[axis] * len(q)).reshape(-1, len(q)) + p
    stands, _ = emitted(y, q, p)
    _, x = emitted(y, p, q)
    falls, back = emitted(x, q, p)
    wanted = phi(y, p, SCALE).prod(-1)
    found = phi(y, q, SCALE).prod(-1) * stands + phi(x, q, SCALE).prod(-1) * (1 - falls)
    gap = (back - y).abs().amax(-1) * wanted + (found - wanted).abs()
    return float(gap.sum() * (axis[1] - axis[0]) ** len(q) / 2)


PAIRS = {
    "1-D": ([0.2], [0.7]),
    "1-D far": ([-1.0], [1.5]),
    "2-D": ([0.2, -0.4], [0.7, 0.5]),
    "2-D near": ([0.2, -0.4], [0.21, -0.4]),
}


def means(name: str) -> tuple[Tensor, Tensor]:
    return tuple(torch.tensor(x, dtype=torch.float64) for x in PAIRS[name])


@pytest.mark.parametrize("name", PAIRS)
def test_reflection_emits_the_targets_density(name: str) -> None:
    assert reflected_error(*means(name)) < 1e-12


MUTANTS = {
    "not mirrored": ("reflect_point", lambda value, q, p, scale: p + (value - q)),
    "mirrored at the draft": ("reflect_point", lambda value, q, p, scale: 2 * q - value),
    "ratio turned over": ("reflect_threshold", lambda value, q, p, scale: _ratio(value, p, q, scale)),
    "accepts 3 % too often": (
        "reflect_threshold",
        lambda value, q, p, scale: (1.03 * _ratio(value, q, p, scale)).clamp_max(1),
    ),
}
_ratio = gaussian.reflect_threshold


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("name", ("1-D", "2-D"))
def test_a_wrong_reflection_shows(name: str, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, *MUTANTS[mutant])
    assert reflected_error(*means(name)) > 1e-3


@pytest.mark.parametrize("name", PAIRS)
def test_reflection_accepts_with_twice_the_tail_of_half_the_distance(name: str) -> None:
    q, p = means(name)
    distance = float((q - p).norm()) / SCALE
    line = (p - q) / (p - q).norm()
    along, weight = split(torch.tensor(distance * SCALE / 2), 0.0, SCALE)  # the kink lies half-way between the means
    x = q + along[:, None] * line
    stands, _ = emitted(x, q, p)
    mass = float((phi(along, 0.0, SCALE) * stands * weight).sum())
    assert abs(mass - math.erfc(distance / 8**0.5)) < 1e-12
    if len(q) == 2:  # the chance does not depend on what lies across the line
        across = torch.tensor([-line[1], line[0]])
        assert (emitted(x + 1.3 * across, q, p)[0] - stands).abs().max() < 1e-12


# a chain of two values in 1-D; the laws of the second never coincide


def p_mean(x: Tensor) -> Tensor:
    return 0.5 * x.sin() + 0.5


def q_mean(x: Tensor) -> Tensor:
    return 0.3 * x.sin() - 0.2


ROOT = torch.zeros((), dtype=torch.float64)
Q1, P1 = q_mean(ROOT), p_mean(ROOT)


def weighed(first: Tensor, second: Tensor, rule: Rule) -> tuple[Draft, Evidence, Weights]:
    """Rows of drafted values, float64 [R] both."""
    value = torch.stack((torch.zeros_like(first), first, second), 1)[..., None]
    scale = torch.full_like(value, SCALE)
    law = Law("without_replacement", torch.tensor([0, 1, -1]), mean=q_mean(value[:, :-1]), scale=scale[:, :-1])
    draft, evidence = Draft(value, chain(2), law), Evidence(mean=p_mean(value), scale=scale)
    return draft, evidence, rule.weigh(evidence, draft)


def kink(weight: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """Where weight p = q."""
    return (p + q) / 2 - weight.log() * SCALE**2 / (p - q)


def excess(y: Tensor, weight: Tensor, q: Tensor, p: Tensor) -> Tensor:
    return (weight * phi(y, p, SCALE) - phi(y, q, SCALE)).clamp_min(0)


def fails(first: Tensor, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """At first values [R]: the chance that two drafts do not stand, the threshold of the first one, and its weight P."""
    weight = weighed(first, first, rule)[2].alpha[:, 1]
    x, w = split(kink(weight, q_mean(first), p_mean(first)), q_mean(first), SCALE)
    height = weighed(first[:, None].expand_as(x).flatten(), x.flatten(), rule)[2].threshold.reshape(*x.shape, 3)
    chance = (phi(x, q_mean(first)[:, None], SCALE) * (1 - height[..., 2]) * w).sum(-1)
    return chance, height[:, 0, 1], weight


def joint_error(rule: Rule) -> float:
    """Total variation between the law of the first two values emitted and the target's, on a grid."""
    axis = torch.linspace(-6, 6, 61, dtype=torch.float64) * SCALE
    first, step = axis + P1, axis[1] - axis[0]
    second = first[:, None].expand(-1, 61) * 0 + axis + p_mean(first)[:, None]
    one = first[:, None].expand_as(second)
    height = weighed(one.flatten(), second.flatten(), rule)[2].threshold.reshape(61, 61, 3)
    chance, h1, weight = fails(first, rule)
    q2, p2 = q_mean(first)[:, None], p_mean(first)[:, None]
    both = phi(one, Q1, SCALE) * phi(second, q2, SCALE) * height[..., 2]
    rest = excess(second, weight[:, None], q2, p2)
    mass = excess_mass(weight, (q_mean(first) - p_mean(first)).abs() / SCALE)
    single = phi(first, Q1, SCALE) * chance * h1 / mass.clamp_min(1e-300)
    x, w = split(kink(torch.ones(()), Q1, P1), Q1, SCALE)
    chance, h1, _ = fails(x, rule)
    none = (phi(x, Q1, SCALE) * chance * (1 - h1) * w).sum()
    start = excess(one, torch.ones(()), Q1, P1) / excess_mass(torch.ones(()).double(), (Q1 - P1).abs() / SCALE)
    found = both + single[:, None] * rest + none * start * phi(second, p2, SCALE)
    return float((found - phi(one, P1, SCALE) * phi(second, p2, SCALE)).abs().sum() * step**2 / 2)


def test_block_verification_of_two_values_emits_the_targets_joint_density() -> None:
    assert joint_error(GaussianBlock()) < 1e-10


def _uncapped(log_ratio: Tensor, gap: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """P as the capped product of all ratios, instead of capping at every step."""
    weight = torch.nn.functional.pad(log_ratio, (1, 0)).cumsum(-1).clamp_max(0).exp()
    mass = excess_mass(weight[:, :-1], gap)
    return torch.cat((mass / (mass + 1 - weight[:, :-1]), weight[:, -1:]), 1), weight


def _unweighted(log_ratio: Tensor, gap: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Z without the weight of the prefix."""
    height, weight = thresholds(log_ratio, gap, drawn)
    mass = excess_mass(torch.ones_like(gap), gap)
    return torch.cat((mass / (mass + 1 - weight[:, :-1]), height[:, -1:]), 1), weight


def _product(log_ratio: Tensor, gap: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Every prefix with its own weight, as if none but the longest could be kept."""
    _, weight = thresholds(log_ratio, gap, drawn)
    return weight, weight


@pytest.mark.parametrize("mutant", (_uncapped, _unweighted, _product))
def test_wrong_block_thresholds_show(mutant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, "gaussian_block_thresholds", mutant)
    assert joint_error(GaussianBlock()) > 1e-4


class Chosen(Keys):
    """Residual uniforms of our choice."""

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        if purpose == Purpose.RESIDUAL:
            return self.numbers(len(self.seeds))[:, None]
        return Keys.uniform(self, purpose, *shape, step=step)

    @staticmethod
    def numbers(count: int) -> Tensor:
        return torch.linspace(0, 1, count, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)


def residual_error(first: float, node: int) -> float:
    """Largest gap between the uniforms and the distribution function of the residual at what they are turned into."""
    count = 201
    x = torch.full((count,), first, dtype=torch.float64)
    draft, evidence, weights = weighed(x, x + 5, GaussianBlock())
    uniform = torch.where(torch.arange(3) <= node, 0.0, 1.0).double().expand(count, 3)
    verdict = GaussianBlock().select(weights, uniform, draft)
    assert (verdict.depth == node).all()
    verdict = GaussianBlock().resample(evidence, draft, weights, verdict, Chosen(Keys.of(0, count).seeds))
    weight, parent = weights.alpha[:, node], draft.value[:, node, 0]
    low = kink(weight, q_mean(parent), p_mean(parent))  # the residual lies above it
    z, w = panels(torch.stack((low, verdict.correction[:, 0]), -1))
    below = (excess(z, weight[:, None], q_mean(parent)[:, None], p_mean(parent)[:, None]) * w).sum(-1)
    whole = excess_mass(weight, (q_mean(parent) - p_mean(parent)).abs() / SCALE)
    return float((below / whole - Chosen.numbers(count)).abs().max())


@pytest.mark.parametrize(("first", "node"), [(-0.9, 0), (-0.9, 1), (0.1, 1)])
def test_the_residual_is_drawn_from_its_distribution_function(first: float, node: int) -> None:
    assert residual_error(first, node) < 1e-10


def test_a_residual_that_forgets_the_prefix_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = gaussian.excess_draw
    monkeypatch.setattr(gaussian, "excess_draw", lambda weight, gap, u: draw(torch.ones_like(weight), gap, u))
    assert residual_error(-0.9, 1) > 1e-2


def kept_on_average(rule: Rule) -> float:
    """Drafted values that stand, by quadrature over both."""
    x, w = split(kink(torch.ones(()), Q1, P1), Q1, SCALE)
    weight = weighed(x, x, GaussianBlock())[2].alpha[:, 1]
    z, v = split(kink(weight, q_mean(x), p_mean(x)), q_mean(x), SCALE)
    draft, _, weights = weighed(x[:, None].expand_as(z).flatten(), z.flatten(), rule)
    # the chance that one and that two stand, of what each rule tests
    stand = weights.alpha[:, 1:] if rule.looks_ahead else weights.threshold[:, 1:].cumprod(-1)
    mass = phi(x, Q1, SCALE)[:, None] * w[:, None] * phi(z, q_mean(x)[:, None], SCALE) * v
    return float((stand.sum(-1).reshape(z.shape) * mass).sum())


def test_block_verification_keeps_more_than_reflection() -> None:
    assert kept_on_average(GaussianBlock()) > kept_on_average(Reflection()) + 0.01
