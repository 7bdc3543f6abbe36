"""The excess of one Gaussian over another of its scale: its mass, draws of it, and what happens at the ends."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.kernels.block_verification import excess_draw, excess_mass, gaussian_block_thresholds
from tests.core.round.rules.quadrature import panels, phi


@pytest.mark.parametrize("gap", (1e-6, 1e-3, 0.3, 2.0, 30.0))
@pytest.mark.parametrize("weight", (1.0, 1 - 1e-9, 0.9, 0.1, 1e-12))
def test_the_mass_is_the_integral(weight: float, gap: float) -> None:
    crossing = torch.tensor(-math.log(weight) / gap - gap / 2, dtype=torch.float64).clamp(-40, 40)
    x, w = panels(torch.stack((crossing, crossing.clamp_min(0) + 10)), 16)
    integral = ((weight * phi(x, 0.0, 1.0) - phi(x, -gap, 1.0)).clamp_min(0) * w).sum()
    one = torch.tensor(1.0, dtype=torch.float64)
    torch.testing.assert_close(excess_mass(weight * one, gap * one), integral, rtol=1e-7, atol=1e-16)


def test_draws_are_finite_and_ordered_for_any_weights_and_gaps() -> None:
    weight = torch.tensor([1.0, 1.0, 1.0, 0.5, 1e-300, 0.0], dtype=torch.float64)[:, None]
    gap = torch.tensor([0.0, 1e-12, 1e-3, 1.0, 50.0, 1e6], dtype=torch.float64)
    uniform = torch.tensor([0.0, 0.25, 0.5, 1 - 2**-53], dtype=torch.float64)[:, None, None]
    drawn = excess_draw(weight.expand(6, 6), gap.expand(6, 6), uniform.expand(4, 6, 6))
    assert drawn.isfinite().all() and (drawn.diff(dim=0) >= -1e-9).all()


def test_thresholds_stop_where_the_draft_stops() -> None:
    ratio = torch.tensor([[-0.5, 0.3, torch.nan]], dtype=torch.float64)
    gap = torch.tensor([[1.0, 1.0, torch.nan]], dtype=torch.float64)
    height, weight = gaussian_block_thresholds(ratio, gap, torch.tensor([[True, True, False]]))
    assert height.isfinite().all() and weight.isfinite().all()
    assert height[0, 2] == weight[0, 2] == pytest.approx(math.exp(-0.2))  # the last one drawn passes with P itself


def test_equal_distributions_are_accepted_to_the_end() -> None:
    height, weight = gaussian_block_thresholds(
        torch.zeros(1, 3).double(), torch.zeros(1, 3).double(), torch.ones(1, 3) > 0
    )
    assert (height == 1).all() and (weight == 1).all()
