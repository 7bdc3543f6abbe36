"""A request that is decoded round by round, alone and timed, so that it can be shown again as fast as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mmspec.core.loop import DecodingRun
    from mmspec.core.stats import Stats

WARM_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class LaneRound:
    """seconds: of the lane's own work, up to the end of the round.   marks: what the domain says became of its values:
    "accepted" drafts, "corrected" ones, the target's "own" where nothing had been drafted, and what was "drafted"; indices,
    or pieces of text.   kept: drafted values that stood.
    """

    seconds: float
    marks: dict[str, list]
    kept: int


@dataclass(slots=True)
class Lane:
    """One way to decode one request. title: how it is called.   rounds: so far.   seconds: of the whole call so far, pixels
    included.   stats: None before it has begun.   finished: it has come to its end.   stopped: why it has not; None where
    nothing was wrong.
    """

    title: str
    rounds: list[LaneRound] = field(default_factory=list)
    seconds: float = 0.0
    stats: Stats | None = None
    finished: bool = False
    stopped: str | None = None

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time of the block; what happens between such blocks, drawing and sending, is not the lane's."""
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - began

    @property
    def ended(self) -> bool:
        """Nothing more comes."""
        return self.finished or self.stopped is not None

    @property
    def decode_seconds(self) -> float:
        """Without the prefill."""
        return self.seconds - (self.stats.prefill_s if self.stats else 0.0)


L = TypeVar("L", bound=Lane)
Start = Callable[[], "DecodingRun"]
RoundMarks = Callable[["DecodingRun"], tuple[dict[str, list], int]]


def run_lane(lane: Lane, start: Start, note: RoundMarks, seconds: float) -> Iterator[DecodingRun]:
    """Decodes to the end, or to the first round behind `seconds`; yields behind every round.

    note: the marks of the round that has just ended, and how many drafted values it kept; called outside the lane's time.
    """
    import torch

    with lane.timed(), torch.no_grad():
        run = start()
    lane.stats, more = run.stats, True
    while more:
        with lane.timed():
            more = run.step()
        marks, kept = note(run)
        lane.rounds.append(LaneRound(lane.seconds, marks, kept))
        errors = getattr(run.target, "errors", None)
        if errors:
            lane.stopped = next(iter(errors.values())).removeprefix("row 0: ")
        elif more and lane.seconds > seconds:
            lane.stopped = f"expected to be done within {seconds:g} s, got no end by then, ask for less"
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
    """Decode the first lane and then the second; yields both behind every round.

    Args:
        pair: The plain and the fast lane.
        starts: Start the request of each.
        marks_of: Makes the marks of a lane.
        seconds: The time that each may decode.
        warmed: The starts to warm up with, None for both.
        finish: Makes the output of a finished lane, in its time; both lanes are yielded once more behind it.
    """
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
    """The first rounds of a request, thrown away: what is loaded or allocated once is no lane's time."""
    import torch

    with torch.no_grad():
        run = start()
        for _ in range(WARM_ROUNDS):
            if not run.step():
                break


def last_accepted(run: Any) -> int:
    """Drafted values that the last round kept in the only row."""
    return run.stats.accepted[-1][0] or 0
