"""The order of the values of an image or a video, their grid cells, and the values that are forced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NO_VALUE = -1


@dataclass(frozen=True)
class Geometry:
    """Grids of codes that are generated in turn in raster order, with forced values at the ends of rows and at the end.

    Values are codes 0..K-1. From K on they are other tokens that a model emits inside an image.

    Attributes:
        grids: (rows, cols) of each grid; the last grid is the decoded image.
        row_end: The value forced behind every row, or None.
        tail: The values forced behind the last grid.
        frames: The frames of each grid. All frames of a grid come before the next grid; the order is time, then rows,
            then columns. An image has a single frame.

    Raises:
        ValueError: A grid is empty, or there are no frames.
    """

    grids: tuple[tuple[int, int], ...]
    row_end: int | None = None
    tail: tuple[int, ...] = ()
    frames: int = 1

    def __post_init__(self) -> None:
        if not self.grids or any(rows < 1 or cols < 1 for rows, cols in self.grids):
            raise ValueError(f"grids: expected at least one grid (rows, cols) with sides from 1 up, got {self.grids}")
        if self.frames < 1:
            raise ValueError(f"frames: expected at least 1, got {self.frames}; an image is one frame")

    @staticmethod
    def square(side: int) -> Geometry:
        """Return the geometry of a single grid of side x side codes without forced values."""
        return Geometry(((side, side),))

    @property
    def rows(self) -> int:
        """Rows of the last grid, which is the decoded image."""
        return self.grids[-1][0]

    @property
    def cols(self) -> int:
        """Columns of the last grid, without the row end."""
        return self.grids[-1][1]

    @property
    def stride(self) -> int:
        """Generated values per row of a frame, the row end included."""
        return self.cols + (self.row_end is not None)

    @cached_property
    def total(self) -> int:
        """Generated values per image or video, forced values included."""
        return len(self.cells)

    @cached_property
    def cells(self) -> tuple[tuple[int, int, int, int], ...]:
        """(grid, frame, row, column) of every value; column = cols at a row end, the last three -1 in the tail."""
        cells = []
        for number, (rows, cols) in enumerate(self.grids):
            width = cols + (self.row_end is not None)
            cells += [(number, f, r, c) for f in range(self.frames) for r in range(rows) for c in range(width)]
        return (*cells, *((len(self.grids) - 1, NO_VALUE, NO_VALUE, NO_VALUE) for _ in self.tail))

    @cached_property
    def forced(self) -> Tensor:
        """int64 [total], the value forced at each index, -1 where the model decides."""
        values = [self.row_end if c == self.grids[g][1] else NO_VALUE for g, _, _, c in self.cells]
        if self.tail:
            values[-len(self.tail) :] = self.tail
        return torch.tensor(values)

    @cached_property
    def code_index(self) -> Tensor:
        """int64 [frames * rows * cols], the generated index of every decoded code, in raster order."""
        last = len(self.grids) - 1
        return torch.tensor([i for i, (g, _, _, c) in enumerate(self.cells) if g == last and 0 <= c < self.cols])
