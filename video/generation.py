"""How a block of latents is drawn: its reserved noise, the levels of a shifted flow, and samplers in a few steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.keys import Keys
from mmspec.io.validation import check_fields
from mmspec.methods import method

_DRAWS = 1024  # reserved for a block: the first, and one for every time it is noised again


class BlockNoise(Protocol):
    """batch: rows it has noise for."""

    batch: int

    def at(self, block: int, draw: int, shape: Sequence[int]) -> Tensor:
        """float32 [B, *shape], standard normals: draw 0 is what a block starts from, draw i what it is noised with after i
        passes."""


@dataclass(frozen=True, slots=True)
class KeyedBlockNoise:
    """Made anew from the seeds of the rows whenever it is asked for: a target that draws a block again, after whatever was
    decided before, has what the drafter had and what it would have had alone."""

    keys: Keys

    @property
    def batch(self) -> int:
        return len(self.keys.seeds)

    def at(self, block: int, draw: int, shape: Sequence[int]) -> Tensor:
        if not 0 <= draw < _DRAWS:
            raise ValueError(f"draw: expected 0..{_DRAWS - 1}, got {draw}; take fewer steps a block")
        seeds = self.keys.seeds
        position = torch.full((len(seeds), 1), block * _DRAWS + draw, dtype=torch.long, device=seeds.device)
        return self.keys.normal_at(position, prod(shape)).reshape(-1, *shape)


class GivenBlockNoise:
    """Noise that was drawn elsewhere. first: per block, float [B, C, F, H, W].   fresh: per block, as many as are needed of
    the same shape, entry i for after i + 1 passes.   Raises ValueError on use for what was not given."""

    def __init__(self, first: Sequence[Tensor], fresh: Sequence[Sequence[Tensor]] = ()):
        self.blocks = [[one, *(fresh[i] if i < len(fresh) else ())] for i, one in enumerate(first)]
        self.batch = len(first[0])

    def at(self, block: int, draw: int, shape: Sequence[int]) -> Tensor:
        drawn = self.blocks[block] if block < len(self.blocks) else []
        if draw >= len(drawn) or tuple(drawn[draw].shape[1:]) != tuple(shape):
            got = tuple(drawn[draw].shape) if draw < len(drawn) else "none"
            raise ValueError(
                f"noise: expected {self.batch} x {tuple(shape)} for draw {draw} of block {block}, got {got}; give it"
            )
        return drawn[draw]


# (x [B, C, F, H, W], timestep, where the step ends) -> the flow, noise - clean, of x's shape
Velocity = Callable[[Tensor, float, float], Tensor]


class Sampler(Protocol):
    """passes: forward passes a block.   until: whether the model has to know where a step ends."""

    passes: int
    until: bool

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        """Latents [B, C, F, H, W]. noise(i): draw i of those that are reserved for this block, in the model's dtype."""


TRAINING_STEPS = 1000


def shifted(sigma: Tensor, shift: float) -> Tensor:
    """sigma' = shift sigma / (1 + (shift - 1) sigma)."""
    return shift * sigma / (1 + (shift - 1) * sigma)


@lru_cache(maxsize=16)
def sigmas(shift: float) -> Tensor:
    """float32 [1000], the levels from 1 down to that of the last step, which is not 0; timesteps are 1000 times these."""
    return shifted(torch.linspace(1.0, 0.0, TRAINING_STEPS + 1)[:-1], shift)


def warped(steps: Sequence[int], shift: float) -> tuple[float, ...]:
    """Steps 0..1000 as the timesteps of the shifted flow, float32 numbers: 1000, 750, 500, 250 at shift 5 are 1000, 937.5,
    833.3, 625; and 0 stays 0."""
    table = torch.cat((sigmas(shift) * TRAINING_STEPS, torch.zeros(1)))
    return tuple(table[[TRAINING_STEPS - step for step in steps]].tolist())


def level(timestep: float, shift: float) -> Tensor:
    """float32 [1, 1, 1, 1, 1], sigma of the timestep of the table that is nearest; at timestep 0 it is the table's last."""
    table = sigmas(shift)
    nearest = (table.double() * TRAINING_STEPS - timestep).abs().argmin()
    return table[nearest].reshape(1, 1, 1, 1, 1)


@method(
    "few_step", domain="video", kind="schedule", title="few steps", exact=False, models=("blocks",), order=3,
    about="a block is predicted whole at each of a few timesteps and noised anew",
    paper="Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion",
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class FewStep:
    """At each timestep the clean block is predicted whole, x0 = x - sigma flow, and noised anew to the next one's level:
    "Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion".

    A last step of 0 is one more pass over the almost clean block, as Krea's models take it; see `krea`.

    Args:
        steps: From 1000 down, at least one.
        shift: The shift of the flow.
        warp: Whether the steps are of the unshifted flow, so that 1000, 750, 500, 250 become 1000, 937.5, 833.3, 625; else
            they are the timesteps themselves.

    Raises:
        ValueError: The steps do not fall.
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

    until = False

    @property
    def passes(self) -> int:
        return len(self.steps)

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


@method(
    "flow_map", domain="video", kind="schedule", title="flow map", exact=False, models=("blocks",), order=2,
    about="a block is drawn in a few steps of a flow map",
    paper="AnyFlow: Any-Step Video Diffusion Model with On-Policy Flow Map Distillation",
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class FlowMap:
    """x_r = x_t - (sigma_t - sigma_r) flow(x_t, t, r): "AnyFlow: Any-Step Video Diffusion Model with On-Policy Flow Map
    Distillation". A block follows from its first noise.

    Args:
        passes: The steps of a block.
        shift: The shift of the flow.
        until: Whether the model knows where a step ends; plain Euler steps where it does not.

    Raises:
        ValueError: There are no steps, or the shift is 0 or less.
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
