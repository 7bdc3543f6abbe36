"""An image of discrete or continuous tokens, drawn plainly and then with drafts, and the cells that each round fills."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.core.loop import Drafter, DraftState, Target
from mmspec.web.lanes.lane import Lane, last_accepted, run_pair

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from mmspec.core.loop import DecodingRun
    from mmspec.imagegen.base_pipeline import BasePipeline


class RecordingDrafter:
    """A drafter that drafts as another does. Of one request.   last: its last draft, None before the first."""

    def __init__(self, drafter: Drafter):
        self.drafter, self.name = drafter, drafter.name
        self.last: Draft | None = None

    def open(self, target: Target) -> RecordingDraftState:
        return RecordingDraftState(self, self.drafter.open(target))


class RecordingDraftState:
    """As the state it is around."""

    def __init__(self, watching: RecordingDrafter, state: DraftState):
        self.watching, self.state = watching, state

    @property
    def passes(self) -> int:
        return self.state.passes

    def propose(self, target: Target, keys: Keys) -> Draft:
        self.watching.last = draft = self.state.propose(target, keys)
        return draft

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.state.observe(target, draft, evidence, verdict)


Marks = tuple[dict[str, list], int]


class RasterCells:
    """For values that come in raster order: a round's drafts stand up to the first that does not."""

    def __init__(self) -> None:
        self.filled = 0

    def __call__(self, run: DecodingRun) -> Marks:
        target, kept = run.target, last_accepted(run)
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

    def __call__(self, run: DecodingRun) -> Marks:
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
        }, last_accepted(run)


def cells_of(run: DecodingRun) -> RasterCells | MaskedCells:
    """Who tells of the rounds of a request."""
    return MaskedCells() if hasattr(run.target, "known") else RasterCells()


How = Mapping[str, Any]


@dataclass(slots=True)
class ImageLane(Lane):
    """picture, tokens: once it is finished.   head_calls: of a head that denoises vectors."""

    picture: Image | None = None
    tokens: Tensor | None = None
    head_calls: int | None = None

    @property
    def ended(self) -> bool:
        """Nothing more comes."""
        return self.picture is not None or self.stopped is not None


@dataclass(frozen=True, slots=True)
class ImageLaneRequest:
    """given: what the pipeline takes for one picture.   plain, fast: arguments of both calls.   title: of the fast lane."""

    given: Any
    plain: How
    fast: How
    title: str
    seed: int


def image_lanes(pipe: BasePipeline, request: ImageLaneRequest, seconds: float) -> Iterator[tuple[ImageLane, ImageLane]]:
    """The plain picture and then the drafted one, as they fill; the last of each has pixels.

    seconds: that each may take.   Raises ValueError for what the pipeline or the decoding refuses.
    """
    if pipe.model.no_pixels:
        raise ValueError(pipe.model.no_pixels)
    plain, fast = ImageLane("plain decoding"), ImageLane(request.title)
    starts = (partial(_start, pipe, request, request.plain), partial(_start, pipe, request, request.fast))
    yield from run_pair(
        (plain, fast),
        starts,
        lambda lane: _CellMarks(),
        seconds,
        finish=lambda lane, run: _decode_pixels(lane, pipe, run),
    )


def _start(pipe: BasePipeline, request: ImageLaneRequest, how: How) -> DecodingRun:
    run = pipe.start([request.given], seed=[request.seed], **how)
    run.drafter = RecordingDrafter(run.drafter)
    return run


class _CellMarks:
    """Told of every round; who tells of its cells follows from the first."""

    def __init__(self) -> None:
        self.cells: Callable[[DecodingRun], Marks] | None = None

    def __call__(self, run: DecodingRun) -> Marks:
        self.cells = self.cells or cells_of(run)
        return self.cells(run)


def _decode_pixels(lane: ImageLane, pipe: BasePipeline, run: DecodingRun) -> None:
    import torch

    with torch.no_grad():
        lane.tokens = pipe.tokens(run.target)
        lane.picture = pipe.to_videos(lane.tokens, {})[0][0]
    lane.head_calls = getattr(run.target, "head_calls", None)


def same_tokens(one: ImageLane, other: ImageLane) -> bool:
    """Whether both are finished and equal in every value, bit for bit."""
    done = one.tokens is not None and other.tokens is not None
    return done and one.tokens.shape == other.tokens.shape and bool((one.tokens == other.tokens).all())


def layout(pipe: BasePipeline) -> tuple[int, int, Callable[[int], tuple[int, int]]]:
    """Rows, columns, and where in them a value lies; values outside the grid (ends of rows) lie at its edge."""
    geometry = getattr(pipe.model, "geometry", None)
    if geometry is None:
        side = math.isqrt(pipe.model.total if hasattr(pipe.model, "total") else pipe.model.transformer.config.tokens)
        return side, side, lambda cell: divmod(cell, side)
    cells = geometry.cells
    return geometry.rows, geometry.stride, lambda cell: (max(cells[cell][2], 0), max(cells[cell][3], 0))
