"""What a way of drawing a block of latents is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

# (x [B, C, F, H, W], timestep, where the step ends) -> the flow, noise - clean, of x's shape
Velocity = Callable[[Tensor, float, float], Tensor]


class Sampler(Protocol):
    """passes: forward passes a block.   until: whether the model has to know where a step ends."""

    passes: int
    until: bool

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        """Latents [B, C, F, H, W]. noise(i): draw i of those that are reserved for this block, in the model's dtype."""
