"""Few-step generation with fresh noise at every step, of models distilled for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.arguments import check_fields
from mmspec.video.generation.sampler import Velocity
from mmspec.video.generation.schedule import level, warped


@dataclass(frozen=True, slots=True)
class FewStep:
    """At each timestep the clean block is predicted whole, x0 = x - sigma flow, and noised anew to the next one's level:
    "Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion".

    steps: from 1000 down, at least one.   shift: of the flow.   warp: whether the steps are of the unshifted flow, so that
    1000, 750, 500, 250 become 1000, 937.5, 833.3, 625; else they are the timesteps themselves.
    A last step of 0 is one more pass over the almost clean block, as Krea's models take it; see `krea`.
    Raises ValueError for steps that do not fall.
    """

    steps: tuple[int, ...] = (1000, 750, 500, 250)
    shift: float = 5.0
    warp: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "steps", tuple(self.steps))
        steps = self.steps
        falling = all(one > other for one, other in zip(steps, steps[1:], strict=False))
        if not steps or not falling or not 0 <= steps[-1] <= steps[0] <= 1000:
            raise ValueError(f"steps: expected numbers that fall from 1000 to 0, got {list(steps)}; correct them")
        if not self.shift > 0:
            raise ValueError(
                f"shift: expected a number above 0, got {self.shift}; 5 is what these models are made with"
            )

    @classmethod
    def krea(cls, count: int = 5) -> FewStep:
        """Krea Realtime's list: `count` steps evenly from 1000 to 0, the last of which is a pass like the others. Steps are
        whole before they are warped, timesteps are not."""
        return cls(tuple(torch.linspace(1000, 0, count).int().tolist()))

    @property
    def passes(self) -> int:
        return len(self.steps)

    @property
    def until(self) -> bool:
        """Whether the model is also told the time it steps to."""
        return False

    @property
    def timesteps(self) -> tuple[float, ...]:
        """What the model is given; never rounded."""
        return warped(self.steps, self.shift) if self.warp else tuple(map(float, self.steps))

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        """The block at the end of the walk. The prediction is made in float64, the noise added in float32."""
        x, (first, *later) = noise(0), self.timesteps
        clean = self._clean(velocity, x, first)
        for number, timestep in enumerate(later, 1):
            sigma, fresh = level(timestep, self.shift).to(x.device), noise(number)
            x = ((1 - sigma) * clean + sigma * fresh).to(fresh.dtype)
            clean = self._clean(velocity, x, timestep)
        return clean

    def _clean(self, velocity: Velocity, x: Tensor, timestep: float) -> Tensor:
        flow, sigma = velocity(x, timestep, timestep), level(timestep, self.shift).to(x.device)
        return (x.double() - sigma.double() * flow.double()).to(flow.dtype)
