"""Rotary positions on a grid."""

from __future__ import annotations

import torch
from torch import Tensor


def grid_table(grid: int, head_dim: int, prefix: int, base: float = 10000.0) -> Tensor:
    """complex64 [prefix + grid * grid, head_dim / 2]: cos + i sin of every position.

    With m = head_dim / 4 frequencies f_j = base ** (-j / m), pair j < m of the token at (row, column) turns by
    row * f_j and pair m + j by column * f_j. Rows of the prefix are ZERO, not the identity: there q and k become zero
    vectors, so image tokens give every visible prefix token the logit 0.
    """
    half = head_dim // 2
    angle = torch.outer(torch.arange(grid, dtype=torch.float32), frequencies(head_dim, base))  # [grid, m]
    rows = angle[:, None].expand(grid, grid, -1)
    cols = angle[None, :].expand(grid, grid, -1)
    turned = torch.cat([rows, cols], -1).reshape(grid * grid, half)
    table = torch.complex(turned.cos(), turned.sin())
    return torch.cat([table.new_zeros(prefix, half), table])


def frequencies(head_dim: int, base: float) -> Tensor:
    """float32 [head_dim / 4]: base ** (-j / m) of the m pairs of one axis."""
    m = head_dim // 4
    # float32 powers differ between processors by more than the rounding that follows
    return (base ** -(torch.arange(m, dtype=torch.float64) / m)).float()


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """x: [R, N, heads, head_dim], whose adjacent channels (2j, 2j + 1) are pair j. turn: complex64 [R or 1, N, 1, pairs].

    Returns the turned x, computed in float32 and given back in x's dtype.
    """
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


class GridTable:
    """The table of one model, made at first use and then kept per device.

    Not a buffer: `module.to(dtype)` would round it, and published files do not hold it.
    """

    def __init__(self, grid: int, head_dim: int, prefix: int, base: float):
        self.sizes = (grid, head_dim, prefix, base)
        self._made: dict[torch.device, Tensor] = {}

    def at(self, position: Tensor) -> Tensor:
        """complex64 [R or 1, N, 1, pairs] of positions int64 [R, N] or [N], the prefix counted from 0."""
        table = self._made.get(position.device)
        if table is None:
            with torch.device("cpu"), torch.inference_mode(False):
                table = grid_table(*self.sizes).to(position.device)
            self._made[position.device] = table
        turn = table[position].unsqueeze(-2)
        return turn if position.dim() == 2 else turn[None]
