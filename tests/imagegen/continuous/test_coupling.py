"""Couplings of one step: what is emitted has the target's density, for equal scales and for unequal ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mmspec.core.round.keys import Keys
from mmspec.imagegen.continuous.head_sampling import speculation
from mmspec.imagegen.continuous.head_sampling.speculation import (
    SLACK,
    DiagonalNormal,
    RatioCoupling,
    ReflectionCoupling,
)
from tests.core.round.rules.quadrature import panels, phi, split


def normal(mean: list[float], scale: list[float], rows: int) -> DiagonalNormal:
    made = [torch.tensor(x, dtype=torch.float64).expand(rows, -1) for x in (mean, scale)]
    return DiagonalNormal(*made)


def density(law: DiagonalNormal, at: Tensor) -> Tensor:
    return law.log_density(at).exp() / (2 * math.pi) ** (at.shape[-1] / 2)


def grid(law: DiagonalNormal, count: int = 81) -> tuple[Tensor, float]:
    """Points [count^d, d] around a law's mean, and the volume that each stands for."""
    reach = torch.linspace(-7, 7, count, dtype=torch.float64)
    axes = [float(m) + float(s) * reach for m, s in zip(law.mean[0], law.scale[0], strict=True)]
    volume = math.prod(float(axis[1] - axis[0]) for axis in axes)
    return torch.cartesian_prod(*axes).reshape(-1, len(axes)), volume


def mirror_error(q: tuple, p: tuple) -> float:
    """Total variation of what Mirror emits. The mirror is its own inverse with the laws exchanged, which is checked."""
    y, volume = grid(normal(*p, 1))
    q, p, rule = normal(*q, len(y)), normal(*p, len(y)), ReflectionCoupling()
    x = rule.replacement(y, p, q, None)
    found = density(q, y) * rule.probability(y, q, p) + density(q, x) * (1 - rule.probability(x, q, p))
    back = (rule.replacement(x, q, p, None) - y).abs().amax(-1)
    return float(((found - density(p, y)).abs() + back * density(p, y)).sum() * volume / 2)


def ratio_error(q: tuple, p: tuple) -> float:
    """Total variation of what Ratio emits: the accepted part and the part of p that proposals pass with. The latter is the
    law of a replacement times the chance of a rejection, if only both have one mass: total masses are compared too.
    """
    y, volume = grid(normal(*p, 1))
    q, p, rule = normal(*q, len(y)), normal(*p, len(y)), RatioCoupling()
    stands, passes = density(q, y) * rule.probability(y, q, p), density(p, y) * rule.passes(y, q, p)
    return float((stands + passes - density(p, y)).abs().sum() * volume / 2)


EQUAL = {
    "1-D": (([0.2], [0.5]), ([0.7], [0.5])),
    "2-D": (([0.2, -0.3], [0.5, 0.5]), ([0.7, 0.1], [0.5, 0.5])),
    "2-D, a scale an axis": (([0.2, -0.3], [0.5, 0.2]), ([0.7, 0.1], [0.5, 0.2])),
}
UNEQUAL = {
    "1-D wider": (([0.2], [0.5]), ([0.7], [0.8])),
    "1-D narrower": (([0.2], [0.5]), ([0.3], [0.3])),
    "1-D, one mean": (([0.2], [0.5]), ([0.2], [0.51])),
    "2-D": (([0.2, -0.3], [0.5, 0.6]), ([0.7, 0.1], [0.7, 0.4])),
    "2-D equal": EQUAL["2-D"],
}


@pytest.mark.parametrize("name", EQUAL)
def test_the_mirror_emits_the_targets_density(name: str) -> None:
    assert mirror_error(*EQUAL[name]) < 1e-12


@pytest.mark.parametrize("name", ("1-D wider", "1-D narrower", "2-D"))
def test_the_mirror_of_unequal_scales_shows(name: str) -> None:
    assert mirror_error(*UNEQUAL[name]) > 1e-2


@pytest.mark.parametrize("name", UNEQUAL)
def test_the_ratio_emits_the_targets_density_for_any_two_scales(name: str) -> None:
    assert ratio_error(*UNEQUAL[name]) < 1e-12


@pytest.mark.parametrize("name", UNEQUAL)
def test_a_ratio_whose_proposals_forget_the_slack_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        RatioCoupling, "passes", lambda self, x, q, p: 1 - (q.log_density(x) - p.log_density(x)).clamp_max(0).exp()
    )
    assert ratio_error(*UNEQUAL[name]) > SLACK / 20


def test_rejections_and_passes_have_equal_mass() -> None:
    """1-D, with panels that end at both crossings of the densities."""
    (q_mean, q_scale), (p_mean, p_scale) = ((0.2, 0.5), (0.7, 0.8))
    a = 1 / q_scale**2 - 1 / p_scale**2
    b = -2 * (q_mean / q_scale**2 - p_mean / p_scale**2)
    crossings = []
    for shift in (0.0, math.log(1 - SLACK)):  # where p = q, and where (1 - SLACK) p = q
        c = q_mean**2 / q_scale**2 - p_mean**2 / p_scale**2 - 2 * math.log(p_scale / q_scale) + 2 * shift
        root = math.sqrt(b * b - 4 * a * c)
        crossings += [(-b - root) / (2 * a), (-b + root) / (2 * a)]
    edges = torch.tensor(sorted([-9.0, *crossings, 9.0]), dtype=torch.float64)
    x, w = panels(edges, 12)
    q, p = normal([q_mean], [q_scale], len(x)), normal([p_mean], [p_scale], len(x))
    rejected = 1 - (density(q, x[:, None]) * RatioCoupling().probability(x[:, None], q, p) * w).sum()
    passed = (density(p, x[:, None]) * RatioCoupling().passes(x[:, None], q, p) * w).sum()
    assert abs(float(rejected - passed)) < 1e-12


@pytest.mark.parametrize("gap", (0.01, 0.5, 2.0))
def test_the_mirror_accepts_with_twice_the_tail_of_half_the_distance(gap: float) -> None:
    x, w = split(torch.tensor(gap / 2).double(), 0.0, 1.0)
    q, p = normal([0.0], [1.0], len(x)), normal([gap], [1.0], len(x))
    assert (
        abs(
            float((phi(x, 0.0, 1.0) * ReflectionCoupling().probability(x[:, None], q, p) * w).sum())
            - math.erfc(gap / 8**0.5)
        )
        < 1e-12
    )


def test_ratio_replacements_have_the_distribution_of_the_residual() -> None:
    rows = 20_000
    q, p = normal([0.0], [0.5], rows), normal([0.1], [0.55], rows)
    keys = Keys.of(3, rows)
    drawn = RatioCoupling().replacement(q.mean, q, p, keys)[:, 0]
    x, w = split(torch.tensor(0.1).double(), 0.1, 0.55)
    one, other = normal([0.0], [0.5], len(x)), normal([0.1], [0.55], len(x))
    law = density(other, x[:, None]) * RatioCoupling().passes(x[:, None], one, other) * w
    for power in (1, 2, 3):
        wanted = float((law * x**power).sum() / law.sum())
        sample = drawn**power
        assert abs(float(sample.mean()) - wanted) < 5 * float(sample.std()) / rows**0.5
    # no row depends on another
    some = torch.tensor([5, 77, 1234])
    alone = RatioCoupling().replacement(q.mean[some], q.rows(some), p.rows(some), Keys(keys.seeds[some]))
    torch.testing.assert_close(alone[:, 0], drawn[some], rtol=1e-12, atol=1e-12)


def test_equal_distributions_never_wait_for_a_replacement() -> None:
    q = normal([0.0, 1.0], [0.5, 0.5], 200)
    drawn = RatioCoupling().replacement(q.mean, q, q, Keys.of(0, 200))
    assert drawn.isfinite().all()
    assert abs(float(RatioCoupling().probability(q.mean, q, q)[0]) - (1 - SLACK)) < 1e-12


def test_rows_that_are_not_finite_are_not_waited_for() -> None:
    q = normal([0.0], [0.5], 3)
    broken = DiagonalNormal(torch.tensor([[0.3], [torch.nan], [0.3]]).double(), q.scale)
    drawn = RatioCoupling().replacement(q.mean, q, broken, Keys.of(0, 3))
    assert drawn[[0, 2]].isfinite().all() and drawn[1].isnan().all()
    assert speculation.PROPOSALS > 1
