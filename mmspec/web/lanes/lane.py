"""A request that is decoded round by round and timed, so that the page can replay it at its measured speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mmspec.core.round.loop import DecodingRun
    from mmspec.core.round.stats import Stats

WARM_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class LaneRound:
    """A round of a lane."""

    seconds: float  # the time of the lane up to the end of the round
    # Indices or pieces of text by kind: "accepted" drafts, "corrected" drafts, the target's "own" values without a
    # draft, and all "drafted" values.
    marks: dict[str, list]
    accepted: int  # the number of accepted drafts


@dataclass(slots=True)
class Lane:
    """A request under a decoding."""

    title: str  # the name of the decoding
    rounds: list[LaneRound] = field(default_factory=list)
    seconds: float = 0.0  # of the whole call so far, with the decoding of pixels
    stats: Stats | None = None  # None before the start
    finished: bool = False  # the output is complete
    stopped: str | None = None  # the reason why the request ended early, None without an error

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time of the block to the lane. The page is updated outside such blocks."""
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - began

    @property
    def ended(self) -> bool:
        return self.finished or self.stopped is not None

    @property
    def decode_seconds(self) -> float:
        return self.seconds - (self.stats.prefill_s if self.stats else 0.0)


L = TypeVar("L", bound=Lane)
Start = Callable[[], "DecodingRun"]
RoundMarks = Callable[["DecodingRun"], tuple[dict[str, list], int]]


def run_lane(lane: Lane, start: Start, note: RoundMarks, seconds: float) -> Iterator[DecodingRun]:
    """Decode to the end, or to the first round after `seconds`; yield after every round. `note` turns a run into the
    marks of its last round and the number of accepted drafts. It is not timed."""
    import torch

    with lane.timed(), torch.no_grad():
        run = start()
    lane.stats, more = run.stats, True
    while more:
        with lane.timed():
            more = run.step()
        marks, accepted = note(run)
        lane.rounds.append(LaneRound(lane.seconds, marks, accepted))
        errors = getattr(run.target, "errors", None)
        if errors:
            lane.stopped = next(iter(errors.values())).removeprefix("row 0: ")
        elif more and lane.seconds > seconds:
            lane.stopped = f"expected to be done within {seconds:g} s, got no end by then, lower the length or the size"
            more = False
        lane.finished = not more and lane.stopped is None
        yield run


def run_pair(
    pair: tuple[L, L],
    starts: tuple[Start, Start],
    marks_of: Callable[[L], RoundMarks],
    seconds: float,
    *,
    warmed: Sequence[Start] | None = None,
    finish: Callable[[L, DecodingRun], None] | None = None,
) -> Iterator[tuple[L, L]]:
    """Decode the plain lane and then the fast lane, each for at most `seconds`; yield both after every round. Both
    starts are `warmed` up by default. `finish` writes the output of a finished lane, within its time; both lanes are
    yielded again after it."""
    for start in starts if warmed is None else warmed:
        warm_up(start)
    for lane, start in zip(pair, starts, strict=True):
        for run in run_lane(lane, start, marks_of(lane), seconds):
            yield pair
            if lane.finished and finish is not None:
                with lane.timed():
                    finish(lane, run)
                yield pair


def warm_up(start: Start) -> None:
    """Run the first rounds of a request and discard them, so that no lane pays for loading and first allocations."""
    import torch

    with torch.no_grad():
        run = start()
        for _ in range(WARM_ROUNDS):
            if not run.step():
                break


def last_accepted(run: Any) -> int:
    """Return the number of drafts that the last round accepted in the only row."""
    return run.stats.accepted[-1][0] or 0
