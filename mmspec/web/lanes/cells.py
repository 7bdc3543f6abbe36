"""Cells of an image by who filled them in each round: the model alone, or its drafter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import Drafter, DraftState, Target
from mmspec.web.lanes.lane import last_accepted

if TYPE_CHECKING:
    from mmspec.core.round.loop import DecodingRun
    from mmspec.imagegen.base_pipeline import BasePipeline

Marks = tuple[dict[str, list], int]


class RecordingDrafter:
    """A drafter that delegates to another drafter and records its last draft. It serves a single request."""

    def __init__(self, drafter: Drafter):
        self.drafter, self.name = drafter, drafter.name
        self.last: Draft | None = None

    def open(self, target: Target) -> RecordingDraftState:
        return RecordingDraftState(self, self.drafter.open(target))


class RecordingDraftState:
    def __init__(self, recorder: RecordingDrafter, state: DraftState):
        self.recorder, self.state = recorder, state

    @property
    def passes(self) -> int:
        return self.state.passes

    def propose(self, target: Target, keys: Keys) -> Draft:
        self.recorder.last = draft = self.state.propose(target, keys)
        return draft

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.state.observe(target, draft, evidence, verdict)


class CellMarks:
    """The marks of every round of a request whose drafter is a `RecordingDrafter`."""

    def __init__(self) -> None:
        self.filled = 0
        self.known: set[int] = set()

    def __call__(self, run: DecodingRun) -> Marks:
        return self._masked(run) if hasattr(run.target, "known") else self._raster(run)

    def _raster(self, run: DecodingRun) -> Marks:
        """Return the marks of values in raster order: drafts are accepted up to the first rejection."""
        target, accepted = run.target, last_accepted(run)
        new = list(range(self.filled, target.filled[0]))
        drafted = _drafted(run.drafter.last, self.filled, target.total)
        rest = new[accepted:]
        self.filled = target.filled[0]
        return _marks(
            new[:accepted],
            [cell for cell in rest if cell in drafted],
            [cell for cell in rest if cell not in drafted],
            drafted,
        ), accepted

    def _masked(self, run: DecodingRun) -> Marks:
        """Return the marks of values in any order. An accepted draft equals the final value."""
        target, draft = run.target, run.drafter.last
        known = set(target.known[0].nonzero()[:, 0].tolist())
        new, accepted, drafted = known - self.known, set(), set()
        if draft is not None and draft.valid is not None:
            for node, (cell, is_valid) in enumerate(zip(draft.index[0].tolist(), draft.valid[0].tolist(), strict=True)):
                if is_valid and cell < target.total:
                    drafted.add(cell)
                    if cell in new and bool((draft.value[0, node] == target.values[0, cell]).all()):
                        accepted.add(cell)
        self.known = known
        return _marks(accepted, (new & drafted) - accepted, new - drafted, drafted), last_accepted(run)


def _marks(*cells: Any) -> dict[str, list]:
    return {name: sorted(part) for name, part in zip(("accepted", "corrected", "own", "drafted"), cells, strict=True)}


def _drafted(draft: Draft | None, filled: int, total: int) -> set[int]:
    """Return the cells with a draft in this round; node 0 is a known value."""
    if draft is None:
        return set()
    index = draft.tree.depth[0] + filled - 1 if draft.index is None else draft.index[0]
    valid = [True] * len(index) if draft.valid is None else draft.valid[0].tolist()
    return {cell for cell, there in zip(index[1:].tolist(), valid[1:], strict=True) if there and 0 <= cell < total}


def layout(pipe: BasePipeline) -> tuple[int, int, Callable[[int], tuple[int, int]]]:
    """Return the rows and columns of the grid, and a function from a value to its row and column. Ends of rows, which
    lie outside the grid, are placed at its edge. The frames of a video lie beside each other."""
    geometry = getattr(pipe.model, "geometry", None)
    if geometry is None:
        side = math.isqrt(pipe.model.total if hasattr(pipe.model, "total") else pipe.model.transformer.config.tokens)
        return side, side, lambda cell: divmod(cell, side)
    across = math.ceil(math.sqrt(2 * geometry.frames)) if geometry.frames > 1 else 1  # frames beside each other
    height, width = geometry.rows + 1, geometry.stride + 1  # with a gap

    def place(cell: int) -> tuple[int, int]:
        _, frame, row, column = geometry.cells[cell]
        down, right = divmod(max(frame, 0), across)
        return down * height + max(row, 0), right * width + max(column, 0)

    return -(-geometry.frames // across) * height - 1, across * width - 1, place
