"""Which cells of a picture a round filled: with accepted drafts, corrections of drafts, or the target's own values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.web.runs.lane import last_kept

if TYPE_CHECKING:
    from mmspec.core.draft import Draft
    from mmspec.core.loop import Decoding

Marks = tuple[dict[str, list], int]


class RasterCells:
    """For values that come in raster order: a round's drafts stand up to the first that does not."""

    def __init__(self) -> None:
        self.filled = 0

    def __call__(self, run: Decoding) -> Marks:
        target, kept = run.target, last_kept(run)
        new = list(range(self.filled, target.filled[0]))
        drafted = self._drafted(run.drafter.last, target.total)
        rest = new[kept:]
        self.filled = target.filled[0]
        return {
            "accepted": new[:kept],
            "corrected": [cell for cell in rest if cell in drafted],
            "own": [cell for cell in rest if cell not in drafted],
            "drafted": sorted(drafted),
        }, kept

    def _drafted(self, draft: Draft | None, total: int) -> set[int]:
        """Cells that had a draft in this round; node 0 is what is known."""
        if draft is None:
            return set()
        index = draft.tree.depth[0] + self.filled - 1 if draft.index is None else draft.index[0]
        valid = [True] * len(index) if draft.valid is None else draft.valid[0].tolist()
        return {cell for cell, there in zip(index[1:].tolist(), valid[1:], strict=True) if there and 0 <= cell < total}


class MaskedCells:
    """For values that come in any order: each drafted one stands or falls, and what stands is the draft itself."""

    def __init__(self) -> None:
        self.known: set[int] = set()

    def __call__(self, run: Decoding) -> Marks:
        target, draft = run.target, run.drafter.last
        known = set(target.known[0].nonzero()[:, 0].tolist())
        new, stands, drafted = known - self.known, set(), set()
        if draft is not None and draft.valid is not None:
            for node, (cell, there) in enumerate(zip(draft.index[0].tolist(), draft.valid[0].tolist(), strict=True)):
                if there and cell < target.total:
                    drafted.add(cell)
                    if cell in new and bool((draft.value[0, node] == target.values[0, cell]).all()):
                        stands.add(cell)
        self.known = known
        return {
            "accepted": sorted(stands),
            "corrected": sorted((new & drafted) - stands),
            "own": sorted(new - drafted),
            "drafted": sorted(drafted),
        }, last_kept(run)


def cells_of(run: Decoding) -> RasterCells | MaskedCells:
    """Who tells of the rounds of a request."""
    return MaskedCells() if hasattr(run.target, "known") else RasterCells()
