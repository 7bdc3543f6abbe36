"""Generation of a block of latents: its reserved noise, the levels of a shifted flow, and few-step samplers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Annotated, Protocol

import torch
from torch import Tensor

from mmspec.core.round.keys import Keys
from mmspec.io.validation import Range, Size, check_fields
from mmspec.methods import method

_DRAWS = 1024  # reserved per block: the start, and a draw for every renoising


class BlockNoise(Protocol):
    batch: int

    def at(self, block: int, draw: int, shape: Sequence[int]) -> Tensor:
        """Return standard normals, float32 [B, *shape]; a block starts from draw 0, and draw i follows i passes."""


@dataclass(frozen=True, slots=True)
class KeyedBlockNoise:
    """Noise that is recomputed from the seeds of the rows at every use.

    So the target regenerates a block from the noise that the drafter used, whatever was decided before.
    """

    keys: Keys

    @property
    def batch(self) -> int:
        """The number of rows B."""
        return len(self.keys.seeds)

    def at(self, block: int, draw: int, shape: Sequence[int]) -> Tensor:
        if not 0 <= draw < _DRAWS:
            raise ValueError(f"draw: expected 0..{_DRAWS - 1}, got {draw}; take fewer steps per block")
        seeds = self.keys.seeds
        position = torch.full((len(seeds), 1), block * _DRAWS + draw, dtype=torch.long, device=seeds.device)
        return self.keys.normal_at(position, prod(shape)).reshape(-1, *shape)


class GivenBlockNoise:
    """Noise from elsewhere. Its use raises ValueError for noise that is missing.

    Args:
        first: Per block, float [B, C, F, H, W].
        fresh: Per block, noise of the same shape; entry i is used after i + 1 passes.
    """

    def __init__(self, first: Sequence[Tensor], fresh: Sequence[Sequence[Tensor]] = ()):
        self.blocks = [[start, *(fresh[i] if i < len(fresh) else ())] for i, start in enumerate(first)]
        self.batch = len(first[0])

    def at(self, block: int, draw: int, shape: Sequence[int]) -> Tensor:
        drawn = self.blocks[block] if block < len(self.blocks) else []
        if draw >= len(drawn) or tuple(drawn[draw].shape[1:]) != tuple(shape):
            got = tuple(drawn[draw].shape) if draw < len(drawn) else "none"
            raise ValueError(
                f"noise: expected {self.batch} x {tuple(shape)} for draw {draw} of block {block}, got {got}; provide it"
            )
        return drawn[draw]


# (x [B, C, F, H, W], timestep, timestep at the end of the step) -> the flow, noise - clean, of x's shape
Velocity = Callable[[Tensor, float, float], Tensor]


class Sampler(Protocol):
    passes: int  # forward passes per block
    until: bool  # whether the model reads the end of a step

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        """Return latents [B, C, F, H, W]; `noise(i)` is draw i of the block's reserved noise, in the model's dtype."""


TRAINING_STEPS = 1000


def shifted(sigma: Tensor, shift: float) -> Tensor:
    return shift * sigma / (1 + (shift - 1) * sigma)


@lru_cache(maxsize=16)
def sigmas(shift: float) -> Tensor:
    """Return the levels float32 [1000], from 1 to the last step, which is above 0; timesteps are 1000 times these."""
    return shifted(torch.linspace(1.0, 0.0, TRAINING_STEPS + 1)[:-1], shift)


def warped(steps: Sequence[int], shift: float) -> tuple[float, ...]:
    """Return steps 0..1000 as timesteps of the shifted flow, in float32; at shift 5, 750 becomes 937.5, and 0 stays 0."""
    table = torch.cat((sigmas(shift) * TRAINING_STEPS, torch.zeros(1)))
    return tuple(table[[TRAINING_STEPS - step for step in steps]].tolist())


def level(timestep: float, shift: float) -> Tensor:
    """Return sigma, float32 [1, 1, 1, 1, 1], of the nearest timestep in the table; the last entry for timestep 0."""
    table = sigmas(shift)
    nearest = (table.double() * TRAINING_STEPS - timestep).abs().argmin()
    return table[nearest].reshape(1, 1, 1, 1, 1)


@method(
    "few_step",
    domain="video",
    kind="schedule",
    title="few steps",
    exact=False,
    models=("blocks",),
    order=3,
    about="predicts the clean block at each of a few timesteps and renoises it",
    paper="Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion",
)
@dataclass(frozen=True, slots=True)
class FewStep:
    """Few-step sampling: each step predicts the clean block, x0 = x - sigma flow, and renoises it to the next level.

    Paper: "Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion". A last step of 0 is a further
    pass over the almost clean block, as in Krea's models; see `krea`.

    Args:
        steps: A falling list from 1000, of 1 entry or more.
        shift: The shift of the flow.
        warp: Whether steps are those of the unshifted flow, as 1000, 750 for the timesteps 1000, 937.5.

    Raises:
        ValueError: The steps do not fall, or the shift is 0 or less.
    """

    steps: tuple[int, ...] = (1000, 750, 500, 250)
    shift: Annotated[float, Range(above=0, hint="the published models use 5")] = 5.0
    warp: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "steps", tuple(self.steps))
        steps = self.steps
        falling = all(step > later for step, later in zip(steps, steps[1:], strict=False))
        if not steps or not falling or not 0 <= steps[-1] <= steps[0] <= 1000:
            raise ValueError(f"steps: expected numbers that fall from 1000 to 0, got {list(steps)}; correct them")

    @classmethod
    def krea(cls, count: int = 5) -> FewStep:
        """Return the sampler of Krea Realtime: `count` steps evenly from 1000 to 0, rounded to integers before warping."""
        return cls(tuple(torch.linspace(1000, 0, count).int().tolist()))

    until = False

    @property
    def passes(self) -> int:
        """Forward passes per block."""
        return len(self.steps)

    @property
    def timesteps(self) -> tuple[float, ...]:
        """The timesteps that the model reads; never rounded."""
        return warped(self.steps, self.shift) if self.warp else tuple(map(float, self.steps))

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        """The prediction is computed in float64, and the noise is added in float32."""
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
    "flow_map",
    domain="video",
    kind="schedule",
    title="flow map",
    exact=False,
    models=("blocks",),
    order=2,
    about="samples a block in a few steps of a flow map",
    paper="AnyFlow: Any-Step Video Diffusion Model with On-Policy Flow Map Distillation",
)
@dataclass(frozen=True, slots=True)
class FlowMap:
    """Flow-map sampling: x_r = x_t - (sigma_t - sigma_r) flow(x_t, t, r). A block follows from its first noise.

    Paper: "AnyFlow: Any-Step Video Diffusion Model with On-Policy Flow Map Distillation".

    Args:
        passes: The steps per block.
        shift: The shift of the flow.
        until: Whether the model reads the end of a step; without it these are plain Euler steps.

    Raises:
        ValueError: There are no steps, or the shift is 0 or less.
    """

    passes: Size = 4
    shift: Annotated[float, Range(above=0, hint="the published models use 5")] = 5.0
    until: bool = True

    __post_init__ = check_fields

    @property
    def levels(self) -> Tensor:
        """The levels sigma from 1 to 0, float64 [passes + 1]."""
        return shifted(torch.linspace(1.0, 0.0, self.passes + 1, dtype=torch.float64), self.shift)

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        x, levels = noise(0), self.levels.tolist()
        for start, end in zip(levels, levels[1:], strict=False):
            flow = velocity(x, start * TRAINING_STEPS, end * TRAINING_STEPS)
            x = (x.double() - (start - end) * flow.double()).to(flow.dtype)
        return x
