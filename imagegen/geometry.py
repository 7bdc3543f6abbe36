"""Where the values of an image lie: the order they are generated in, their cells, and the values that are forced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NONE = -1


@dataclass(frozen=True)
class Geometry:
    """Grids of codes generated one after the other in raster order, with forced values at the ends of rows and of all.

    grids: (rows, cols) of each grid; the last one is the image that is decoded.
    row_end: the value forced behind every row, or None.   tail: values forced behind the last grid.
    Values are codes 0..K-1 and, from K on, whatever else a model emits in its image span.
    Raises ValueError for an empty grid.
    """

    grids: tuple[tuple[int, int], ...]
    row_end: int | None = None
    tail: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.grids or any(rows < 1 or cols < 1 for rows, cols in self.grids):
            raise ValueError(f"grids: expected at least one of (rows, cols) from 1 up, got {self.grids}")

    @staticmethod
    def square(side: int) -> Geometry:
        """One grid of side x side codes and nothing forced."""
        return Geometry(((side, side),))

    @property
    def rows(self) -> int:
        return self.grids[-1][0]

    @property
    def cols(self) -> int:
        return self.grids[-1][1]

    @property
    def stride(self) -> int:
        """Generated values per row of the image, the row's end included."""
        return self.cols + (self.row_end is not None)

    @cached_property
    def total(self) -> int:
        """Values generated per image, forced ones included."""
        return len(self.cells)

    @cached_property
    def cells(self) -> tuple[tuple[int, int, int], ...]:
        """(grid, row, column) of every generated value; row and column -1 in the tail, column = cols at a row's end."""
        found = []
        for number, (rows, cols) in enumerate(self.grids):
            width = cols + (self.row_end is not None)
            found += [(number, r, c) for r in range(rows) for c in range(width)]
        return (*found, *((len(self.grids) - 1, NONE, NONE) for _ in self.tail))

    @cached_property
    def forced(self) -> Tensor:
        """int64 [total], the value forced at each index, -1 where the model decides."""
        values = [self.row_end if c == self.grids[g][1] else NONE for g, r, c in self.cells]
        if self.tail:
            values[-len(self.tail) :] = self.tail
        return torch.tensor(values)

    @cached_property
    def code_index(self) -> Tensor:
        """int64 [rows * cols], the generated index of every code of the image in raster order."""
        last = len(self.grids) - 1
        return torch.tensor([i for i, (g, r, c) in enumerate(self.cells) if g == last and 0 <= c < self.cols])

    @cached_property
    def left(self) -> Tensor:
        """int64 [total], the generated index of the left neighbour in the same grid, -1 where there is none."""
        return self._neighbour(0, -1)

    @cached_property
    def up(self) -> Tensor:
        """int64 [total], the generated index of the neighbour above in the same grid, -1 where there is none."""
        return self._neighbour(-1, 0)

    def _neighbour(self, down: int, right: int) -> Tensor:
        index = {cell: i for i, cell in enumerate(self.cells)}
        near = [index.get((g, r + down, c + right), NONE) if r >= 0 else NONE for g, r, c in self.cells]
        return torch.tensor(near)
