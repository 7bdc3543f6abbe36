"""Initialisation of a Jacobi window: whose law or value stands in at positions the target has not scored yet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from mmspec.imagegen.geometry import Geometry

Init = Literal[
    "random", "uniform", "repeat_left", "repeat_up", "repeat_frame", "sample_left", "sample_up", "sample_frame",
    "left", "up", "frame", "mix",
]  # fmt: skip
INITS: tuple[str, ...] = get_args(Init)
COPYING = ("repeat_left", "repeat_up", "repeat_frame", "sample_left", "sample_up", "sample_frame")
ONE_HOT = ("random", *COPYING)  # the value is not drawn from a law worth keeping: q is one-hot at it
FROM_LAW = ("left", "up", "frame", "mix")  # drawn from a neighbour's law
WITHOUT_LAW = ("random", "uniform", "repeat_left", "repeat_up", "repeat_frame")  # no law of a neighbour is read
UPWARD = ("sample_up", "up", "mix")  # the law of the cell above is
BACKWARD = ("sample_frame", "frame")  # the law of the same cell of the frame before is


@dataclass(frozen=True, slots=True, eq=False)
class JacobiWindow:
    """Positions to draft, int64 [B, K], behind the roots of all rows.

    inside: `position`, at most the image's last.   horizon: int64 [B, 1], the last position scored so far, at most the
    image's last.   unscored: bool [B, K], positions beyond it.
    """

    position: Tensor
    inside: Tensor
    horizon: Tensor
    unscored: Tensor

    @staticmethod
    def of(last: Tensor, known: Tensor | None, count: int, total: int) -> JacobiWindow:
        """The `count` positions behind the roots `last` int64 [B], `known` int64 [B] of which have been scored; None for
        none."""
        position = last[:, None] + torch.arange(1, count + 1, device=last.device)
        horizon = (last if known is None else last + known)[:, None]
        return JacobiWindow(position, position.clamp(max=total - 1), horizon.clamp(max=total - 1), position > horizon)


@dataclass(frozen=True, slots=True, eq=False)
class LawSources:
    """Where each position looks for a neighbour; all int64 [total].

    row_start: the first index of its row.   above: rows of its frame above it.   stride: values a row.
    earlier: frames of its grid before its own.   frame: values a frame.
    model: the nearest index from it backwards that the model decides, -1 for none.
    forced: the value forced there, -1 for none; None where the geometry forces nothing.
    """

    row_start: Tensor
    above: Tensor
    stride: Tensor
    earlier: Tensor
    frame: Tensor
    model: Tensor
    forced: Tensor | None

    def near(self, init: Init, window: JacobiWindow) -> Tensor:
        """The position each unscored one copies: the last known one, or the first known one above it, or in its place of
        the frames before; int64 [B, K]. Itself where there is none: at the start of a row, in the first one, in the first
        frame."""
        if init.endswith("left"):
            before = self.before(window)
            return torch.where((self.row_start[window.inside] == window.inside) | (before < 0), window.position, before)
        size, most = (self.frame, self.earlier) if init.endswith("frame") else (self.stride, self.above)
        size = size[window.inside]
        steps = (window.inside - window.horizon + size - 1).clamp(min=0) // size
        return window.inside - steps.minimum(most[window.inside]) * size

    def reach(self, init: Init) -> int:
        """How many values before a position the law may lie that it is drafted from, the window aside."""
        farthest = self.stride if init in UPWARD else self.frame if init in BACKWARD else None
        return 0 if farthest is None else int(farthest.max())

    def before(self, window: JacobiWindow) -> Tensor:
        """The last position within the horizon in raster order that the model decides, -1 for none; int64 [B, 1]."""
        return self.model[window.horizon]

    def of_law(self, init: Init, window: JacobiWindow) -> Tensor:
        """Whose law each position of the window is drafted from, -1 for any code alike; int64 [B, K]."""
        if init in WITHOUT_LAW:
            source = torch.full_like(window.horizon, -1)
        elif init == "left":
            source = self.before(window)
        else:
            near = self.near(init, window)
            source = torch.where(near <= window.horizon, near, -1 if init in COPYING else self.before(window))
        return torch.where(window.unscored, source, window.position)


def sources_of(geometry: Geometry, device: torch.device) -> LawSources:
    """The tables of a geometry, made once per device."""
    return _source_tables(geometry, str(device))


@lru_cache(maxsize=64)
def _source_tables(geometry: Geometry, device: str) -> LawSources:
    forced = geometry.forced.tolist()
    start, above, stride, earlier, frame, model = [], [], [], [], [], []
    for index, (grid, time, row, column) in enumerate(geometry.cells):
        start.append(index - max(column, 0))
        above.append(max(row, 0))
        stride.append(geometry.grids[grid][1] + (geometry.row_end is not None))
        earlier.append(max(time, 0))
        frame.append(geometry.grids[grid][0] * stride[-1])
        model.append(index if forced[index] < 0 else (model[-1] if model else -1))
    tables = (torch.tensor(table, device=device) for table in (start, above, stride, earlier, frame, model))
    return LawSources(*tables, geometry.forced.to(device) if max(forced) >= 0 else None)


class PositionRing:
    """table: float [B, slots + 1, V]; position i lies in slot i mod slots, and the extra slot holds `spare` for ever.

    A position is readable until one `slots` further on is written. Writing a position again replaces its row.
    """

    def __init__(self, slots: int, batch: int, spare: Tensor):
        self.slots = slots
        self.table = spare.expand(batch, slots + 1, -1).clone()

    def write(self, position: Tensor, rows: Tensor) -> None:
        """position: int64 [B, K], fewer than `slots` different ones a row; rows: float [B, K, V]."""
        batch = torch.arange(len(position), device=position.device)[:, None]
        self.table[batch, position % self.slots] = rows

    def read(self, position: Tensor) -> Tensor:
        """float [B, K, V] at position int64 [B, K]; the spare row where it is negative."""
        slot = torch.where(position < 0, self.slots, position % self.slots)
        batch = torch.arange(len(position), device=position.device)[:, None]
        return self.table[batch, slot]
