"""Generation along a flow map: any number of steps, and no noise but the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.arguments import check_fields
from mmspec.video.generation.sampler import Velocity
from mmspec.video.generation.schedule import TRAINING_STEPS, shifted


@dataclass(frozen=True, slots=True)
class FlowMap:
    """x_r = x_t - (sigma_t - sigma_r) flow(x_t, t, r): "AnyFlow: Any-Step Video Diffusion Model with On-Policy Flow Map
    Distillation". A block follows from its first noise.

    passes: steps a block.   shift: of the flow.   For a model that does not know where a step ends, `until` False, these are
    plain Euler steps.   Raises ValueError for no steps and for a shift of 0 or less.
    """

    passes: int = 4
    shift: float = 5.0
    until: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.passes < 1:
            raise ValueError(f"passes: expected at least 1, got {self.passes}; take one step or more")
        if not self.shift > 0:
            raise ValueError(
                f"shift: expected a number above 0, got {self.shift}; 5 is what these models are made with"
            )

    @property
    def levels(self) -> Tensor:
        """float64 [passes + 1], sigma from 1 to 0."""
        return shifted(torch.linspace(1.0, 0.0, self.passes + 1, dtype=torch.float64), self.shift)

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        x, levels = noise(0), self.levels.tolist()
        for start, end in zip(levels, levels[1:], strict=False):
            flow = velocity(x, start * TRAINING_STEPS, end * TRAINING_STEPS)
            x = (x.double() - (start - end) * flow.double()).to(flow.dtype)
        return x
