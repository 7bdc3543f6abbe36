"""The order in which an image is filled and the tokens of each step: MAR's random order and cosine, or a checkerboard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from mmspec.core.keys import Keys, Purpose
from mmspec.io.validation import whole

_MOST_STEPS = 1 << 20


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """One step: it decides the positions at ranks first..last - 1 of the order, which is consumed from its end.

    masked: tokens still masked behind it as the published sampler counts them: at least 1, also behind the last step.
    """

    first: int
    last: int
    masked: int


@lru_cache(maxsize=64, typed=True)  # True is not 1 step
def cosine_steps(total: int, num_iter: int) -> tuple[GenerationStep, ...]:
    """The steps that leave floor(total cos(pi/2 s / num_iter)) tokens masked behind step s, each deciding at least one.

    Fewer steps than `num_iter` where that is more than there are tokens: steps that would decide none are left out.
    Raises ValueError for num_iter below 1.
    """
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
    """int64 [B, total], a permutation of the positions a row, each row's from its own seed."""
    return keys.uniform(Purpose.ORDER, total).argsort(dim=-1, stable=True)


def ranks(order: Tensor) -> Tensor:
    """int64 [B, total], where in its order each position stands."""
    return order.argsort(-1)


def checkerboard_orders(keys: Keys, grid: int) -> Tensor:
    """int64 [B, grid^2], random orders in which the cells of even row plus column come last, which is first to be decided.
    Raises ValueError for a grid below 2.
    """
    if grid < 2:
        raise ValueError(f"grid: expected at least 2 tokens a side, got {grid}; a checkerboard needs two colours")
    order = random_orders(keys, grid * grid)
    skeleton = (order // grid + order % grid) % 2 == 0
    return order.gather(1, skeleton.long().argsort(dim=1, stable=True))


def checkerboard_steps(grid: int, num_iter: int, reconstruct: int = 1) -> tuple[GenerationStep, ...]:
    """The plan of "Generation then Reconstruction: Accelerating Masked Autoregressive Models via Two-Stage Sampling": the
    skeleton, half of the image, at plain decoding's pace, which is MAR's cosine in half of num_iter steps, and the other half
    in `reconstruct` equal steps. Relaxed: the order is not MAR's own. The paper's longer denoising for tokens of high
    frequency is left out.   Raises ValueError for a `reconstruct` that leaves steps without a token.
    """
    total, rest = grid * grid, grid * grid // 2
    if not 1 <= reconstruct <= rest:
        raise ValueError(f"reconstruct: expected 1 to {rest} steps, one for each of {rest} cells at most, got {reconstruct}; "
                         "use a step or two")  # fmt: skip
    steps = [
        GenerationStep(step.first + rest, step.last + rest, step.masked + rest if step.first else rest)
        for step in cosine_steps(total - rest, (num_iter + 1) // 2)
    ]
    bounds = [rest - rest * number // reconstruct for number in range(reconstruct + 1)]
    steps += [GenerationStep(low, high, max(low, 1)) for high, low in zip(bounds, bounds[1:], strict=False)]
    return tuple(steps)
