"""CSpD's ratio and residual: the public code's numbers, the orientation of its determinants, and what is exact about it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mmspec.imagegen.continuous.cspd.acceptance import (
    Relaxation,
    log1mexp,
    log_density,
    log_ratio,
    log_residual,
    residual_sample,
)
from mmspec.imagegen.continuous.head_sampling.head import Gaussian, Trajectory
from tests.core.round.rules.quadrature import panels, phi
from tests.parity import case

CASE = "continuous_video/d0_cspd_acceptance"
SCENARIOS = ("t42_realistic", "t42_small_gap", "t1_small_gap", "t1_moderate", "t1_far", "t1_nearly_equal")

PUBLISHED = Relaxation(42.0, "published")


def walks(public: dict[str, Tensor], scenario: str) -> tuple[Trajectory, Trajectory]:
    made = []
    for model in ("q", "p"):
        mean, std, total = (public[f"{scenario}.{model}_{name}"] for name in ("mean", "std", "acc_log_std"))
        made.append(Trajectory(mean, Gaussian(mean, std.log()), mean, total.sum(-1)))
    return tuple(made)


def inner(scenario: str) -> float:
    return 42.0 if scenario.startswith("t42") else 1.0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_ratio_is_the_public_codes_in_its_own_orientation(scenario: str) -> None:
    public = case(CASE)
    draft, target = walks(public, scenario)
    x, u = public[f"{scenario}.x"], public[f"{scenario}.u"]
    found = log_ratio(x, draft, target, Relaxation(inner(scenario), "published"))
    torch.testing.assert_close(found, public[f"{scenario}.log_prob_code_f64"], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(found.exp().float(), public[f"{scenario}.prob"], rtol=2e-3, atol=1e-30)
    assert torch.equal(u.double() < found.exp(), public[f"{scenario}.accept"])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_derived_ratio_is_the_papers(scenario: str) -> None:
    public = case(CASE)
    draft, target = walks(public, scenario)
    x = public[f"{scenario}.x"]
    for temperature, name in ((inner(scenario), "paper_orientation"), (1.0, "unrelaxed_paper")):
        found = log_ratio(x, draft, target, Relaxation(temperature, "derived"))
        torch.testing.assert_close(found, public[f"{scenario}.log_prob_{name}_f64"], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_proposals_chance_is_the_public_codes(scenario: str) -> None:
    public = case(CASE)
    draft, target = walks(public, scenario)
    found = log_residual(public[f"{scenario}.proposal"], draft, target, Relaxation(1.0, "published")).exp()
    torch.testing.assert_close(found.float(), public[f"{scenario}.residual_alpha"], rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_draws_give_the_public_tokens_but_for_its_slips(scenario: str) -> None:
    """The public loop lets every later accepted proposal replace an earlier one and leaves rows without any at zero."""
    public = case(CASE)
    if f"{scenario}.residual_u" not in public:  # nothing was rejected, so the public loop drew nothing
        assert public[f"{scenario}.accept"].all()
        assert torch.equal(public[f"{scenario}.out"], public[f"{scenario}.x"])
        return
    draft, target = walks(public, scenario)
    noise, u = public[f"{scenario}.residual_randn"], public[f"{scenario}.residual_u"]
    kept, expected = public[f"{scenario}.accept"], public[f"{scenario}.out"]
    proposal = target.last.mean + target.last.log_scale.exp() * noise
    passed = u.double().log() < log_residual(proposal, draft, target, PUBLISHED)
    last = len(u) - 1 - passed.flip(0).int().argmax(0)
    latest = torch.where(passed.any(0)[:, None], proposal[last, torch.arange(len(last))], 0.0)
    torch.testing.assert_close(
        torch.where(kept[:, None], public[f"{scenario}.x"], latest), expected, atol=1e-5, rtol=1e-5
    )
    value, tries = residual_sample(draft, target, noise, u, PUBLISHED)
    once = passed.sum(0) == 1
    torch.testing.assert_close(value[once & ~kept], expected[once & ~kept], atol=1e-5, rtol=1e-5)
    assert torch.equal(tries > 0, passed.any(0))
    assert torch.equal(value[tries == 0], target.value[tries == 0])


# two models in 1-D over two steps, the earlier one of different scale

Q_SCALE, P_SCALE = (0.8, 0.5), (0.6, 0.5)  # (earlier, last)


def pair(q_mean: float, p_mean: float, last: tuple[float, float] = (0.5, 0.5)) -> tuple[Trajectory, Trajectory]:
    made = []
    for mean, early, std in ((q_mean, Q_SCALE[0], last[0]), (p_mean, P_SCALE[0], last[1])):
        centre = torch.full((1, 1), mean, dtype=torch.float64)
        law = Gaussian(centre, torch.full_like(centre, math.log(std)))
        made.append(Trajectory(centre, law, centre, torch.tensor([math.log(early)], dtype=torch.float64)))
    return tuple(made)


def test_the_ratio_of_shared_noise_is_the_ratio_of_the_trajectories_densities() -> None:
    """Along x_1 = mean + scale noise with one noise for both, the densities differ by draft scale over target scale."""
    draft, target = pair(0.2, 0.5)
    x, noise = torch.tensor([[0.4]], dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    densities = []
    for scale, walk in ((Q_SCALE, draft), (P_SCALE, target)):
        state = noise * scale[0]
        densities.append(phi(state, 0.0, scale[0]) * phi(x, walk.last.mean, scale[1]))
    wanted = densities[1] / densities[0]
    assert abs(log_ratio(x, draft, target, Relaxation(1.0)).exp() / wanted - 1).max() < 1e-12
    assert abs(log_ratio(x, draft, target, PUBLISHED).exp() / wanted - 1).min() > 0.1


def emitted_error(relaxation: Relaxation, last: tuple[float, float]) -> float:
    """Total variation between the token that CSpD emits, whose last step is drawn, and the target's last step."""
    draft, target = pair(0.2, 0.7, last)
    edges = torch.linspace(-6, 7, 400, dtype=torch.float64)
    x, w = panels(edges, 1)
    at = x[:, None, None]
    q, p = phi(x, 0.2, last[0]), phi(x, 0.7, last[1])
    stands = log_ratio(at, draft, target, relaxation)[:, 0].clamp_max(0).exp()
    passes = log_residual(at, draft, target, relaxation)[:, 0].exp()
    rejected, mass = (q * (1 - stands) * w).sum(), (p * passes * w).sum()
    return float(((q * stands + rejected * p * passes / mass - p).abs() * w).sum() / 2)


@pytest.mark.parametrize("last", [(0.5, 0.5), (0.4, 0.6), (0.6, 0.4)])
def test_an_exact_relaxation_keeps_the_targets_distribution_with_a_drawn_last_step(last: tuple[float, float]) -> None:
    assert emitted_error(Relaxation(1.0, "none"), last) < 1e-4  # panels do not end at the kinks
    for relaxed in (
        Relaxation(1.0, "derived"),
        Relaxation(1.0, "published"),
        Relaxation(2.0, "none"),
        PUBLISHED,
    ):
        assert emitted_error(relaxed, last) > 1e-2


def test_the_first_accepted_proposal_is_used_or_else_the_target_sample() -> None:
    draft, target = pair(0.2, 0.7)
    target = Trajectory(target.value + 9, target.last, target.state, target.log_det)
    noise = torch.tensor([-3.0, 1.0, 2.0], dtype=torch.float64).reshape(3, 1, 1)
    relaxation = Relaxation(1.0, "none")
    value, tries = residual_sample(draft, target, noise, torch.full((3, 1), 1e-9), relaxation)
    assert tries.tolist() == [2] and abs(float(value) - (0.7 + 0.5)) < 1e-12  # -3 has no residual mass, 1 is the first
    value, tries = residual_sample(draft, target, noise[:1], torch.full((1, 1), 1e-9), relaxation)
    assert tries.tolist() == [0] and float(value) == float(target.value)


def test_the_residual_has_its_distribution_and_tries_end_early() -> None:
    rows = 40_000
    draft, target = pair(0.0, 0.6)
    one = [
        Trajectory(
            w.value.expand(rows, 1),
            Gaussian(w.last.mean.expand(rows, 1), w.last.log_scale.expand(rows, 1)),
            w.state.expand(rows, 1),
            w.log_det.expand(rows),
        )
        for w in (draft, target)
    ]
    noise, uniform = torch.randn(100, rows, 1), torch.rand(100, rows)
    value, tries = residual_sample(*one, noise, uniform, Relaxation(1.0, "none"))
    assert (tries > 0).all()
    x, w = panels(torch.linspace(0.3, 5, 40, dtype=torch.float64), 1)
    density = phi(x, 0.6, 0.5) - phi(x, 0.0, 0.5)
    mass = float((density * w).sum())
    mean = float((density * x * w).sum()) / mass
    assert abs(float(value.double().mean()) - mean) < 5 * float(value.std()) / rows**0.5
    assert abs(float(tries.double().mean()) - 1 / mass) < 5 * float(tries.double().std()) / rows**0.5


def test_rows_of_a_batch_do_not_touch_each_other_and_shapes_may_have_more_axes() -> None:
    torch.manual_seed(0)
    mean = torch.randn(2, 3, 4)
    one, other = (Trajectory(m, Gaussian(m, m.sin()), m, m.sum(-1)) for m in (mean, mean + 0.3))
    x = torch.randn(2, 3, 4)
    whole = log_ratio(x, one, other, PUBLISHED)
    flat = [
        Trajectory(t.value[1], Gaussian(t.last.mean[1], t.last.log_scale[1]), t.state[1], t.log_det[1])
        for t in (one, other)
    ]
    assert whole.shape == (2, 3) and torch.equal(log_ratio(x[1], *flat, PUBLISHED), whole[1])
    value, tries = residual_sample(one, other, torch.randn(5, 2, 3, 4), torch.rand(5, 2, 3), PUBLISHED)
    assert value.shape == (2, 3, 4) and tries.shape == (2, 3) and value.dtype == torch.float32


def test_log1mexp_does_not_cancel() -> None:
    x = torch.tensor([-1e-12, -1e-3, -0.5, -2.0, -50.0, 0.0, 3.0], dtype=torch.float64)
    expected = [
        math.log(1e-12),
        math.log(-math.expm1(-1e-3)),
        math.log(-math.expm1(-0.5)),
        math.log1p(-math.exp(-2)),
        -math.exp(-50),
        -math.inf,
        -math.inf,
    ]
    torch.testing.assert_close(log1mexp(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=0)


def test_far_tokens_stay_finite_where_densities_underflow() -> None:
    draft, target = pair(0.0, 300.0)
    found = log_ratio(draft.value, draft, target, Relaxation(1.0, "none"))
    assert found.isfinite().all() and found.item() == pytest.approx(-(600.0**2) / 2)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="temperature: expected above 0, got 0"):
        Relaxation(0)
    with pytest.raises(ValueError, match="determinants: expected 'derived', 'published' or 'none', got 'paper'"):
        Relaxation(1.0, "paper")
    draft, target = pair(0.0, 1.0)
    with pytest.raises(ValueError, match="temperature: expected a number above 0, got 0"):
        log_density(draft.value, draft.last, 0.0)
