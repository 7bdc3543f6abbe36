"""One picture, drawn plainly and then with drafts, by any pipeline of codes or of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mmspec.web.runs.cells import Marks, cells_of
from mmspec.web.runs.lane import Lane, run_lane, warm
from mmspec.web.runs.watching import Watching

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from mmspec.core.loop import Decoding
    from mmspec.imagegen.base_pipeline import BasePipeline

How = Mapping[str, Any]


@dataclass(slots=True)
class Drawn(Lane):
    """picture, tokens: once it is finished.   head_calls: of a head that denoises vectors."""

    picture: Image | None = None
    tokens: Tensor | None = None
    head_calls: int | None = None

    @property
    def ended(self) -> bool:
        """Nothing more comes."""
        return self.picture is not None or self.stopped is not None


@dataclass(frozen=True, slots=True)
class Wish:
    """given: what the pipeline takes for one picture.   plain, fast: arguments of both calls.   title: of the fast lane."""

    given: Any
    plain: How
    fast: How
    title: str
    seed: int


def drawings(pipe: BasePipeline, wish: Wish, seconds: float) -> Iterator[tuple[Drawn, Drawn]]:
    """The plain picture and then the drafted one, as they fill; the last of each has pixels.

    seconds: that each may take.   Raises ValueError for what the pipeline or the decoding refuses.
    """
    if pipe.model.no_pixels:
        raise ValueError(pipe.model.no_pixels)
    plain, fast = Drawn("plain decoding"), Drawn(wish.title)
    ways = ((plain, partial(_start, pipe, wish, wish.plain)), (fast, partial(_start, pipe, wish, wish.fast)))
    for _, start in ways:
        warm(start)
    for lane, start in ways:
        for run in run_lane(lane, start, _Told(), seconds):
            yield plain, fast
            if lane.finished:
                _develop(lane, pipe, run)
                yield plain, fast


def _start(pipe: BasePipeline, wish: Wish, how: How) -> Decoding:
    run = pipe.start([wish.given], seed=[wish.seed], **how)
    run.drafter = Watching(run.drafter)
    return run


class _Told:
    """Told of every round; who tells of its cells follows from the first."""

    def __init__(self) -> None:
        self.cells: Callable[[Decoding], Marks] | None = None

    def __call__(self, run: Decoding) -> Marks:
        self.cells = self.cells or cells_of(run)
        return self.cells(run)


def _develop(lane: Drawn, pipe: BasePipeline, run: Decoding) -> None:
    """Makes pixels, which are part of the lane's time."""
    import torch

    with lane.timed(), torch.no_grad():
        lane.tokens = pipe.tokens(run.target)
        lane.picture = pipe.to_videos(lane.tokens, {})[0][0]
    lane.head_calls = getattr(run.target, "head_calls", None)


def same_tokens(one: Drawn, other: Drawn) -> bool:
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
