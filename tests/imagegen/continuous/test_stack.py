"""Schedules on the target alone: which are plain decoding, and what the others spare."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.continuous.cspd.cspd_drafter import CSpD
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling
from mmspec.imagegen.continuous.schedules.feature_cache import Lazy
from mmspec.imagegen.continuous.schedules.scheduled_steps import ScheduledSteps
from mmspec.imagegen.continuous.schedules.step_annealing import Annealing
from tests.imagegen.continuous.tiny import pipeline


def run(decoding: object = None, **how) -> object:
    how = {"seed": [3, 4], "num_iter": 6, "guidance_scale": 2.0, "pixels": False, **how}
    return pipeline()([1, 2], decoding=decoding, **how)


@pytest.mark.parametrize(
    "decoding",
    [
        ScheduledSteps(),
        ScheduledSteps(lazy=Lazy(5, 1)),
        ScheduledSteps(lazy=Lazy(5, 1, tokens=0.1)),
        ScheduledSteps(lazy=Lazy(1, 3, null=False, tokens=1.0)),
        ScheduledSteps(head_sampling=HeadSampling(annealing=Annealing(4, 4))),
        ScheduledSteps(head_sampling=HeadSampling(annealing=Annealing(4, 2, "constant"))),
    ],
)
def test_settings_that_change_nothing_are_plain_decoding(decoding: ScheduledSteps) -> None:
    plain = run(num_sampling_steps=4)
    out = run(decoding, num_sampling_steps=4)
    torch.testing.assert_close(out.tokens, plain.tokens, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("decoding", "exact"),
    [
        (ScheduledSteps(head_sampling=HeadSampling(3)), True),
        (ScheduledSteps(lazy=Lazy(1, 3)), False),
        (ScheduledSteps(lazy=Lazy(1, 3, tokens=0.2)), False),
        (ScheduledSteps(lazy=Lazy(1, 1, tokens=0.2)), True),
        (ScheduledSteps(lazy=Lazy(1, 3, null=False, tokens=0.2)), False),
        (ScheduledSteps(lazy=Lazy(1, 3, null=False, tokens=1)), True),
        (ScheduledSteps(reconstruct=1), False),
        (ScheduledSteps(head_sampling=HeadSampling(annealing=Annealing(4, 2))), False),
        (
            ScheduledSteps(head_sampling=HeadSampling(3, Annealing(4, 2)), reconstruct=1, lazy=Lazy(1, 3, tokens=0.0)),
            False,
        ),
    ],
)
def test_every_image_is_filled_and_says_whether_it_is_exact(decoding: ScheduledSteps, exact: bool) -> None:
    out = run(decoding, num_sampling_steps=4)
    assert out.tokens.isfinite().all() and out.stats.emitted == [16, 16] and out.errors == {}
    assert out.stats.exact == exact and ("relaxed" in out.stats.rule) == (not exact)
    assert out.stats.drafter == decoding.name != "none"
    again = run(decoding, num_sampling_steps=4)
    assert torch.equal(out.tokens, again.tokens)


def test_a_checkerboard_fills_a_single_colour_first() -> None:
    target = pipeline().start([1, 2], decoding=ScheduledSteps(reconstruct=1), num_iter=8, seed=0).target
    colour = (target.order // 4 + target.order % 4) % 2
    assert (colour[:, 8:] == 0).all() and (colour[:, :8] == 1).all()
    assert [step.first for step in target.plan][-2:] == [8, 0] and len(target.plan) == 5


def test_lazy_passes_leave_the_null_branch_out() -> None:
    decoding = ScheduledSteps(lazy=Lazy(2, 3))
    request = pipeline().start([1, 2], decoding=decoding, num_iter=8, seed=0, guidance_scale=2.0)
    request.run()
    model = request.target.model
    assert (model.passes, model.skipped) == (8, 4)  # full: 0, 1, 4, 7


def test_lazy_passes_compute_the_current_tokens_the_previous_tokens_and_a_share() -> None:
    decoding = ScheduledSteps(lazy=Lazy(2, 3, tokens=0.1))
    request = pipeline().start([1, 2], decoding=decoding, num_iter=8, seed=0, guidance_scale=2.0)
    request.run()
    decided = [step.last - step.first for step in request.target.plan]
    partial, share = (2, 3, 5, 6), 2  # ceil of a tenth of 19, buffer included
    assert request.target.model.cache.computed == [[decided[n - 1] + decided[n] + share] * 2 for n in partial]


@pytest.mark.parametrize(
    ("lazy", "said"),
    [
        (Lazy(), "lazy 5-9"),
        (Lazy(2, 3, tokens=0.25), "lazy 2-3 null+tokens 0.25"),
        (Lazy(2, 3, False, 0.25), "lazy 2-3 tokens 0.25"),
    ],
)
def test_names_of_lazy_settings_list_their_steps_and_shares(lazy: Lazy, said: str) -> None:
    assert ScheduledSteps(lazy=lazy).name == said


@pytest.mark.parametrize("kind", (ScheduledSteps, lambda **how: CSpD(pipeline(), **how)))
def test_a_bare_pair_is_refused(kind: object) -> None:
    with pytest.raises(ValueError, match=r"lazy: expected None or a Lazy, got \(5, 9\); pass Lazy"):
        kind(lazy=(5, 9))


def test_annealing_walks_as_long_as_its_schedule_says() -> None:
    decoding = ScheduledSteps(head_sampling=HeadSampling(annealing=Annealing(4, 2)))
    request = pipeline().start([1, 2], decoding=decoding, num_iter=6, seed=0, num_sampling_steps=4)
    request.run()
    plan = request.target.plan
    assert request.target.head_calls == sum(Annealing(4, 2).at(n, len(plan)) for n in range(len(plan)))


def test_more_steps_than_there_is_noise_for_are_refused() -> None:
    with pytest.raises(ValueError, match="annealing: expected at most 4 denoising steps"):
        run(ScheduledSteps(head_sampling=HeadSampling(annealing=Annealing(9, 2))), num_sampling_steps=4)


def test_a_window_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="window: expected at least 1"):
        HeadSampling(0)


def test_without_noise_nothing_is_drafted() -> None:
    """Refused before a pass is made."""
    for decoding in (ScheduledSteps(head_sampling=HeadSampling(4)), CSpD(pipeline())):
        with pytest.raises(ValueError, match="temperature: expected a number above 0"):
            pipeline().start([1], decoding=decoding, temperature=0)
    assert pipeline().start([1], decoding=CSpD(pipeline(), window="truncate", tolerance=0.0), temperature=0).step()
