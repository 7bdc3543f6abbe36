"""In which order MAR fills an image, and how many tokens each step decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from mmspec.core.arguments import whole
from mmspec.core.keys import Keys, Purpose

_MOST_STEPS = 1 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """One step: it decides the positions at ranks first..last - 1 of the order, which is consumed from its end.

    masked: tokens still masked behind it as the published sampler counts them: at least 1, also behind the last step.
    """

    first: int
    last: int
    masked: int


@lru_cache(maxsize=64)
def cosine_steps(total: int, num_iter: int) -> tuple[Step, ...]:
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
            steps.append(Step(after, left, masked))
        left = after
    return tuple(steps)


def random_orders(keys: Keys, total: int) -> Tensor:
    """int64 [B, total], a permutation of the positions a row, each row's from its own seed."""
    return keys.uniform(Purpose.ORDER, total).argsort(dim=-1, stable=True)


def ranks(order: Tensor) -> Tensor:
    """int64 [B, total], where in its order each position stands."""
    return order.argsort(-1)
