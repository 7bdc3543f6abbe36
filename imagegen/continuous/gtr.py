"""Generation then reconstruction: a checkerboard of tokens first and slowly, the cells between them in a step or two."""

from __future__ import annotations

from torch import Tensor

from mmspec.core.keys import Keys
from mmspec.imagegen.continuous.mar.order import Step, cosine_steps, random_orders


def checkerboard_orders(keys: Keys, grid: int) -> Tensor:
    """int64 [B, grid^2], random orders in which the cells of even row plus column come last, which is first to be decided.
    Raises ValueError for a grid below 2.
    """
    if grid < 2:
        raise ValueError(f"grid: expected at least 2 tokens a side, got {grid}; a checkerboard needs two colours")
    order = random_orders(keys, grid * grid)
    skeleton = (order // grid + order % grid) % 2 == 0
    return order.gather(1, skeleton.long().argsort(dim=1, stable=True))


def checkerboard_steps(grid: int, num_iter: int, reconstruct: int = 1) -> tuple[Step, ...]:
    """The plan of "Generation then Reconstruction: Accelerating Masked Autoregressive Models via Two-Stage Sampling": the
    skeleton, half of the image, at plain decoding's pace, which is MAR's cosine in half of num_iter steps, and the other half
    in `reconstruct` equal ones. Another order than MAR's own, so relaxed in what it draws. The paper's longer walks for tokens
    of high frequency are left out.   Raises ValueError for a `reconstruct` that leaves steps without a token.
    """
    total, rest = grid * grid, grid * grid // 2
    if not 1 <= reconstruct <= rest:
        raise ValueError(f"reconstruct: expected 1 to {rest} steps, one for each of {rest} cells at most, got {reconstruct}; "
                         "use a step or two")  # fmt: skip
    steps = [
        Step(step.first + rest, step.last + rest, step.masked + rest if step.first else rest)
        for step in cosine_steps(total - rest, (num_iter + 1) // 2)
    ]
    bounds = [rest - rest * number // reconstruct for number in range(reconstruct + 1)]
    steps += [Step(low, high, max(low, 1)) for high, low in zip(bounds, bounds[1:], strict=False)]
    return tuple(steps)
