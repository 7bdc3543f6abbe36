"""Where the values of an image or a video lie: their order, their cells, and the values that are forced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NO_VALUE = -1


@dataclass(frozen=True)
class Geometry:
    """Grids of codes generated one after the other in raster order, with forced values at the ends of rows and of all.

    grids: (rows, cols) of each grid; the last one is what is decoded.
    frames: how often each grid is drawn, a frame after the other before the next grid begins: raster order over time, then
        rows, then columns. An image is one frame.
    row_end: the value forced behind every row, or None.   tail: values forced behind the last grid.
    Values are codes 0..K-1 and, from K on, whatever else a model emits in its image span.
    Raises ValueError for an empty grid and for no frames.
    """

    grids: tuple[tuple[int, int], ...]
    row_end: int | None = None
    tail: tuple[int, ...] = ()
    frames: int = 1

    def __post_init__(self) -> None:
        if not self.grids or any(rows < 1 or cols < 1 for rows, cols in self.grids):
            raise ValueError(f"grids: expected at least one of (rows, cols) from 1 up, got {self.grids}")
        if self.frames < 1:
            raise ValueError(f"frames: expected at least 1, got {self.frames}; an image is one frame")

    @staticmethod
    def square(side: int) -> Geometry:
        """One grid of side x side codes and nothing forced."""
        return Geometry(((side, side),))

    @property
    def rows(self) -> int:
        """Of the last grid, which is what is decoded."""
        return self.grids[-1][0]

    @property
    def cols(self) -> int:
        """Of the last grid; a row's end is not among them."""
        return self.grids[-1][1]

    @property
    def stride(self) -> int:
        """Generated values per row of a frame, the row's end included."""
        return self.cols + (self.row_end is not None)

    @cached_property
    def total(self) -> int:
        """Values generated per image or video, forced ones included."""
        return len(self.cells)

    @cached_property
    def cells(self) -> tuple[tuple[int, int, int, int], ...]:
        """(grid, frame, row, column) of every generated value; column = cols at a row's end, the last three -1 in the tail."""
        found = []
        for number, (rows, cols) in enumerate(self.grids):
            width = cols + (self.row_end is not None)
            found += [(number, f, r, c) for f in range(self.frames) for r in range(rows) for c in range(width)]
        return (*found, *((len(self.grids) - 1, NO_VALUE, NO_VALUE, NO_VALUE) for _ in self.tail))

    @cached_property
    def forced(self) -> Tensor:
        """int64 [total], the value forced at each index, -1 where the model decides."""
        values = [self.row_end if c == self.grids[g][1] else NO_VALUE for g, _, _, c in self.cells]
        if self.tail:
            values[-len(self.tail) :] = self.tail
        return torch.tensor(values)

    @cached_property
    def code_index(self) -> Tensor:
        """int64 [frames * rows * cols], the generated index of every code that is decoded, in raster order."""
        last = len(self.grids) - 1
        return torch.tensor([i for i, (g, _, _, c) in enumerate(self.cells) if g == last and 0 <= c < self.cols])
