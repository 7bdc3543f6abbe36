"""The rows of an image or a video as runs of generated values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mmspec.imagegen.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Line:
    """start: index of its first code.   codes: how many.   first: it is the top row of a frame, and cannot start before
    all that comes before it is complete.   source: of what value a stand-in is taken while the value before `start` is
    missing: the line above the one above, or the one above where that is a frame's first.
    """

    start: int
    codes: int
    first: bool
    source: int


@lru_cache(maxsize=64)
def lines_of(geometry: Geometry) -> tuple[Line, ...]:
    """All rows of all frames, in raster order."""
    found: list[Line] = []
    start = 0
    for rows, cols in geometry.grids:
        for row in [*range(rows)] * geometry.frames:
            source = len(found) - (2 if row > 1 else 1)
            found.append(Line(start, cols, row == 0, max(source, 0)))
            start += cols + (geometry.row_end is not None)
    return tuple(found)
