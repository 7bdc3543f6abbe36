"""The order in which an image is filled and the tokens of each step: MAR's random order and cosine, or a checkerboard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from mmspec.core.round.keys import Keys, Purpose
from mmspec.io.validation import whole

_MOST_STEPS = 1 << 20


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """A step that decides the positions at ranks first..last - 1 of the order, which is consumed from its end."""

    first: int
    last: int
    masked: int  # tokens masked after the step, as the published sampler counts: at least 1, also after the last step


@lru_cache(maxsize=64, typed=True)  # True is not 1 step
def cosine_steps(total: int, num_iter: int) -> tuple[GenerationStep, ...]:
    """Return MAR's steps, which leave floor(total cos(pi/2 s / num_iter)) tokens masked after step s. Each step decides
    at least one token; empty steps are left out, so there may be fewer than `num_iter`."""
    if not 1 <= whole("num_iter", num_iter) <= _MOST_STEPS:
        raise ValueError(f"num_iter: expected 1 to {_MOST_STEPS} steps, got {num_iter}; use 1 to {total}")
    steps, left = [], total
    for number in range(1, num_iter + 1):
        wanted = math.floor(total * math.cos(math.pi / 2 * number / num_iter))
        masked = max(1, min(left - 1, wanted))
        after = 0 if number == num_iter else masked
        if after < left:
            steps.append(GenerationStep(after, left, masked))
        left = after
    return tuple(steps)


def random_orders(keys: Keys, total: int) -> Tensor:
    """Return int64 [B, total], a permutation of the positions for each row, drawn from the row's seed."""
    return keys.uniform(Purpose.ORDER, total).argsort(dim=-1, stable=True)


def ranks(order: Tensor) -> Tensor:
    """Return int64 [B, total], the rank of each position in its order."""
    return order.argsort(-1)


def checkerboard_orders(keys: Keys, grid: int) -> Tensor:
    """Return int64 [B, grid^2], random orders whose last cells, which are decided first, have an even row plus column."""
    if grid < 2:
        raise ValueError(f"grid: expected at least 2 tokens per side, got {grid}; a checkerboard needs two colours")
    order = random_orders(keys, grid * grid)
    skeleton = (order // grid + order % grid) % 2 == 0
    return order.gather(1, skeleton.long().argsort(dim=1, stable=True))


def checkerboard_steps(grid: int, num_iter: int, reconstruct: int = 1) -> tuple[GenerationStep, ...]:
    """Return the plan of a checkerboard: half of the cells first, the others in `reconstruct` equal steps. "Generation
    then Reconstruction: Accelerating Masked Autoregressive Models via Two-Stage Sampling". Relaxed: the order is not
    MAR's. The first half has plain decoding's pace. The paper's longer denoising of high frequencies is left out."""
    total, rest = grid * grid, grid * grid // 2
    if not 1 <= reconstruct <= rest:
        raise ValueError(
            f"reconstruct: expected 1 to {rest} steps, at most the number of cells, got {reconstruct}; "
            "use a step or two"
        )
    steps = [
        GenerationStep(step.first + rest, step.last + rest, step.masked + rest if step.first else rest)
        for step in cosine_steps(total - rest, (num_iter + 1) // 2)
    ]
    bounds = [rest - rest * number // reconstruct for number in range(reconstruct + 1)]
    steps += [GenerationStep(low, high, max(low, 1)) for high, low in zip(bounds, bounds[1:], strict=False)]
    return tuple(steps)
