"""Walks from noise to a block: levels, timesteps and draws are those of the published procedures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.video import FewStep, FlowMap
from mmspec.video.generation import level, warped

SHAPE = (1, 3, 2, 4, 4)


def test_warped_steps_are_the_published_timesteps() -> None:
    assert FewStep().timesteps == pytest.approx((1000.0, 937.5, 2500 / 3, 625.0), abs=1e-4)
    assert FewStep().timesteps[1] == 937.5 and FewStep().timesteps[3] == 625.0  # which a whole number would miss
    assert FewStep.krea() == FewStep((1000, 750, 500, 250, 0)) and FewStep.krea().timesteps[-1] == 0.0
    assert FewStep.krea(4).steps == (1000, 666, 333, 0)  # another list, not a shorter one
    assert FewStep((1000, 757, 522), shift=8.0, warp=False).timesteps == (1000.0, 757.0, 522.0)
    assert warped((1000, 800, 600, 400, 200), 5.0) == pytest.approx((1000, 952.38, 882.35, 769.23, 555.56), abs=0.01)


def test_levels_are_looked_up_at_the_nearest_timestep() -> None:
    assert level(937.5, 5.0).item() == 0.9375 and level(625.0, 5.0).item() == 0.625
    assert level(937.4, 5.0).item() == 0.9375
    assert level(0.0, 5.0).item() == pytest.approx(0.005 / 1.004)  # the last of the table, not 0
    assert level(1000.0, 5.0).item() == 1.0


class Recorded:
    """A flow that is a fixed function of its input, and what it was asked."""

    def __init__(self, dtype: torch.dtype = torch.float32):
        self.asked, self.drawn, self.dtype = [], [], dtype

    def velocity(self, x: Tensor, timestep: float, until: float) -> Tensor:
        self.asked.append((timestep, until))
        return (0.5 * x + 0.01 * timestep / 100).to(self.dtype)

    def noise(self, draw: int) -> Tensor:
        self.drawn.append(draw)
        return torch.randn(SHAPE, generator=torch.Generator().manual_seed(draw)).to(self.dtype)


@pytest.mark.parametrize("sampler", (FewStep(), FewStep.krea(), FewStep((1000, 500)), FewStep((1000,))))
def test_each_step_predicts_the_whole_block_and_noises_it_with_a_draw_of_its_own(sampler: FewStep) -> None:
    run = Recorded()
    got = sampler.draw(run.velocity, run.noise)
    assert run.drawn == list(range(len(sampler.steps))) and len(run.asked) == sampler.passes
    assert [t for t, _ in run.asked] == list(sampler.timesteps)
    x, source = run.noise(0), Recorded()
    for number, timestep in enumerate(sampler.timesteps):
        sigma = level(timestep, sampler.shift)
        clean = (x.double() - sigma.double() * source.velocity(x, timestep, 0).double()).float()
        if number + 1 < len(sampler.steps):
            later = level(sampler.timesteps[number + 1], sampler.shift)
            x = (1 - later) * clean + later * source.noise(number + 1)
    assert torch.equal(got, clean)


def test_in_half_precision_the_prediction_is_made_in_double() -> None:
    run = Recorded(torch.bfloat16)
    got = FewStep((500,), warp=False).draw(run.velocity, run.noise)
    x = run.noise(0)
    flow = run.velocity(x, 500.0, 0)
    sigma = level(500.0, 5.0)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, (x.double() - sigma.double() * flow.double()).bfloat16())
    assert not torch.equal(got, x - sigma.bfloat16() * flow)


@pytest.mark.parametrize("passes", (1, 2, 4, 7))
def test_a_flow_map_steps_as_the_stock_scheduler(passes: int) -> None:
    from diffusers import FlowMapEulerDiscreteScheduler

    scheduler, run = FlowMapEulerDiscreteScheduler(shift=5.0), Recorded()
    got = FlowMap(passes).draw(run.velocity, run.noise)
    assert run.drawn == [0] and len(run.asked) == passes and run.asked[-1][1] == 0.0
    scheduler.set_timesteps(passes)
    times, x, source = [*scheduler.timesteps, torch.tensor(0.0)], run.noise(0), Recorded()
    for number, t in enumerate(scheduler.timesteps):
        flow = source.velocity(x, t.item(), 0)
        x = scheduler.step(flow, t, x, times[number + 1]).prev_sample
        assert run.asked[number] == pytest.approx((t.item(), times[number + 1].item()))
    assert (got - x).abs().max() < 1e-6


def test_a_true_flow_map_ends_in_the_same_place_in_any_number_of_steps() -> None:
    def mean_velocity(x: Tensor, timestep: float, until: float) -> Tensor:
        # of dx/dsigma = x: the average over the step of what the flow is along the way
        length = (timestep - until) / 1000
        return x * (1 - torch.tensor(-length).exp()) / length

    ends = [FlowMap(passes).draw(mean_velocity, Recorded().noise) for passes in (1, 3, 8)]
    assert torch.allclose(ends[0], ends[1], atol=1e-5) and torch.allclose(ends[0], ends[2], atol=1e-5)
    assert torch.allclose(ends[0], Recorded().noise(0) * torch.tensor(-1.0).exp(), atol=1e-5)


@pytest.mark.parametrize("steps", ((), (500, 750), (1001,), (1000, 1000), (10, -1)))
def test_steps_that_do_not_fall_are_refused(steps: tuple) -> None:
    with pytest.raises(ValueError, match="steps: expected numbers that fall"):
        FewStep(steps)


def test_other_settings_that_make_no_walk_are_refused() -> None:
    with pytest.raises(ValueError, match="shift: expected "):
        FewStep(shift=0.0)
    with pytest.raises(ValueError, match="passes: expected at least 1"):
        FlowMap(0)
    with pytest.raises(ValueError, match="shift: expected "):
        FlowMap(shift=float("nan"))
