"""Generation with a scheduler of diffusers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmspec.core.arguments import check_fields
from mmspec.video.generation.sampler import Velocity


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Any scheduler that draws no noise of its own: Euler over flows, UniPC and others that remember their last steps.

    scheduler: copied for every block, so that blocks share nothing.   passes: steps a block.   how: what else its
    `set_timesteps` takes.   Raises ValueError for no steps.
    """

    scheduler: Any
    passes: int = 50
    how: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.passes < 1:
            raise ValueError(f"passes: expected at least 1, got {self.passes}; take one step or more")

    @property
    def until(self) -> bool:
        """Whether the model is also told the time it steps to."""
        return False

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        x, scheduler = noise(0), deepcopy(self.scheduler)
        scheduler.set_timesteps(self.passes, device=x.device, **self.how)
        for timestep in scheduler.timesteps:
            flow = velocity(x, float(timestep), float(timestep))
            x = scheduler.step(flow, timestep, x, return_dict=False)[0]
        return x


def dynamic_shift(tokens: int, config: Mapping[str, Any]) -> float:
    """The shift of a picture of so many tokens, on the line through the two that the scheduler's config names."""
    few, many = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    return low + (tokens - few) * (high - low) / (many - few)
