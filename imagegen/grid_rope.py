"""Rotary positions on an image grid or on the frames of a video, for targets and for drafters that follow their cells."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mmspec.imagegen.geometry import Geometry


def grid_table(
    grid: int, head_dim: int, prefix: int, base: float = 10000.0, frames: int = 1, time_pairs: int = 0
) -> Tensor:
    """Return complex64 [prefix + frames * grid * grid, head_dim / 2]: cos + i sin, see `rotary_angles`. The prefix is
    ZERO, not the identity: image tokens give every visible prefix token the logit 0."""
    axes = (torch.arange(count, dtype=torch.float32) for count in (frames, grid, grid))
    angle = rotary_angles(torch.cartesian_prod(*axes), head_dim, base, time_pairs)
    table = torch.complex(angle.cos(), angle.sin())
    return torch.cat([table.new_zeros(prefix, head_dim // 2), table])


def rotary_angles(cell: Tensor, head_dim: int, base: float, time_pairs: int = 0) -> Tensor:
    """Return the angle of each pair of a head, float32 [N, head_dim / 2], at cells float32 [N, 3] (frame, row, column).
    The first `time_pairs` pairs turn with the frame. Half of the other pairs turn with the row, then half with the
    column. Pair j of the n pairs of an axis turns by f_j = base ** (-j / n) per step."""
    plane = (head_dim // 2 - time_pairs) // 2
    axes = zip(cell.unbind(-1), (time_pairs, plane, plane), strict=True)
    return torch.cat([torch.outer(place, rotary_frequencies(pairs, base)) for place, pairs in axes], -1)


def check_rotary_pairs(name: str, head_dim: int, time_pairs: int) -> None:
    """Check that the axes can share the pairs of a head; `name` is the config field that decides the head's size."""
    if head_dim % 4 and not time_pairs:
        raise ValueError(
            f"{name}: expected heads of a multiple of 4 (two axes of rotated pairs), got {head_dim}; change the "
            "number of heads"
        )
    plane = head_dim // 2 - time_pairs
    if head_dim % 2 or time_pairs < 0 or plane < 2 or plane % 2:
        raise ValueError(
            f"time_pairs: expected from 0 up and an even number of the {head_dim // 2} pairs of a head left for "
            f"rows and columns, got {time_pairs}; change time_pairs"
        )


def rotary_frequencies(pairs: int, base: float) -> Tensor:
    """Return float32 [pairs], base ** (-j / pairs) for the pairs of an axis."""
    # float32 powers differ between processors by more than the rounding that follows
    return (base ** -(torch.arange(pairs, dtype=torch.float64) / max(pairs, 1))).float()


@lru_cache(maxsize=16)
def cell_rotary(
    geometry: Geometry, dim: int, theta: float, beyond: int, device: torch.device, time_pairs: int = 0
) -> Tensor:
    """Return cos and signed sin of every value's cell, float32 [total + beyond, 2, dim], for half-split heads, as
    `rotary_angles`. Rows without a cell are ZERO: such slots are seen with logit 0. float32 turns as in LlamaGen."""
    cell = torch.tensor([place for _, *place in geometry.cells], dtype=torch.float32)
    angle = rotary_angles(cell, dim, theta, time_pairs)  # [total, dim / 2]
    cos, sin = angle.cos(), angle.sin()
    table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1)
    table[cell[:, 0] < 0] = 0
    return torch.cat([table, table.new_zeros(beyond, 2, dim)]).to(device)
