"""Initialisation of a Jacobi window: the distribution or value for positions that the target has not scored yet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from mmspec.imagegen.geometry import Geometry

Init = Literal[
    "random",
    "uniform",
    "repeat_left",
    "repeat_up",
    "repeat_frame",
    "sample_left",
    "sample_up",
    "sample_frame",
    "left",
    "up",
    "frame",
    "mix",
]
INITS: tuple[str, ...] = get_args(Init)
COPYING = ("repeat_left", "repeat_up", "repeat_frame", "sample_left", "sample_up", "sample_frame")
ONE_HOT = ("random", *COPYING)  # q is one-hot at the value
FROM_LAW = ("left", "up", "frame", "mix")  # drawn from a neighbour's distribution
WITHOUT_LAW = ("random", "uniform", "repeat_left", "repeat_up", "repeat_frame")  # read no neighbour's distribution
UPWARD = ("sample_up", "up", "mix")  # read the distribution of the cell above
BACKWARD = ("sample_frame", "frame")  # read the distribution of the same cell of the previous frame


@dataclass(frozen=True, slots=True, eq=False)
class JacobiWindow:
    """The positions to draft behind the roots of all rows."""

    position: Tensor  # int64 [B, K]
    inside: Tensor  # int64 [B, K], `position` limited to the image's last value
    horizon: Tensor  # int64 [B, 1], the last position scored so far, limited likewise
    unscored: Tensor  # bool [B, K], beyond the horizon

    @staticmethod
    def of(last: Tensor, known: Tensor | None, count: int, total: int) -> JacobiWindow:
        """Return the `count` positions behind the roots int64 [B]; `known` int64 [B] are scored, None for none."""
        position = last[:, None] + torch.arange(1, count + 1, device=last.device)
        horizon = (last if known is None else last + known)[:, None]
        return JacobiWindow(position, position.clamp(max=total - 1), horizon.clamp(max=total - 1), position > horizon)


@dataclass(frozen=True, slots=True, eq=False)
class LawSources:
    """The neighbours of each position. All tensors are int64 [total]."""

    row_start: Tensor  # the first index of its row
    above: Tensor  # rows above it in its frame
    stride: Tensor  # values per row
    earlier: Tensor  # frames before its own in its grid
    frame: Tensor  # values per frame
    model: Tensor  # the nearest index up to it that the model decides, -1 for none
    forced: Tensor | None  # -1 for none; None where the geometry forces nothing

    def near(self, init: Init, window: JacobiWindow) -> Tensor:
        """Return int64 [B, K], the position that each unscored position copies: the last known, the first known above
        it, or the same cell of the nearest known frame before; itself where there is none."""
        if init.endswith("left"):
            before = self.before(window)
            return torch.where((self.row_start[window.inside] == window.inside) | (before < 0), window.position, before)
        size, most = (self.frame, self.earlier) if init.endswith("frame") else (self.stride, self.above)
        size = size[window.inside]
        steps = (window.inside - window.horizon + size - 1).clamp(min=0) // size
        return window.inside - steps.minimum(most[window.inside]) * size

    def reach(self, init: Init) -> int:
        """Return the farthest distance back from a position to its source's distribution, apart from the window."""
        farthest = self.stride if init in UPWARD else self.frame if init in BACKWARD else None
        return 0 if farthest is None else int(farthest.max())

    def before(self, window: JacobiWindow) -> Tensor:
        """Return int64 [B, 1], the last position up to the horizon that the model decides, -1 for none."""
        return self.model[window.horizon]

    def of_law(self, init: Init, window: JacobiWindow) -> Tensor:
        """Return int64 [B, K], the position whose distribution each draft uses, -1 for a uniform draft."""
        if init in WITHOUT_LAW:
            source = torch.full_like(window.horizon, -1)
        elif init == "left":
            source = self.before(window)
        else:
            near = self.near(init, window)
            source = torch.where(near <= window.horizon, near, -1 if init in COPYING else self.before(window))
        return torch.where(window.unscored, source, window.position)


def sources_of(geometry: Geometry, device: torch.device) -> LawSources:
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
    """Rows by position: i is in slot i mod slots until i + slots is written; `spare` float [V] is for i below 0."""

    def __init__(self, slots: int, batch: int, spare: Tensor):
        self.slots = slots
        self.table = spare.expand(batch, slots + 1, -1).clone()

    def write(self, position: Tensor, rows: Tensor) -> None:
        """Write rows float [B, K, V] at positions int64 [B, K], fewer than `slots` different positions per row."""
        batch = torch.arange(len(position), device=position.device)[:, None]
        self.table[batch, position % self.slots] = rows

    def read(self, position: Tensor) -> Tensor:
        """Return the rows float [B, K, V] at positions int64 [B, K]; the spare row where a position is negative."""
        slot = torch.where(position < 0, self.slots, position % self.slots)
        batch = torch.arange(len(position), device=position.device)[:, None]
        return self.table[batch, slot]
