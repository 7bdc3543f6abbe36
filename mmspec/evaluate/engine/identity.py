"""Whether a method gave another one's output, and whether where they part was a tie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from mmspec.evaluate.engine.ratios import pairs
from mmspec.evaluate.engine.runs import Attempt, Run

TIE = 1e-3  # passes over several values and over one may round log-weights this differently in float32
Margin = Callable[[int, int], float]


def identical(peer: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> str | None:
    """How many requests gave the peer's output, as "29/30"; None where none of them was completed by both."""
    both = pairs(peer, own)
    return f"{sum(a.output == b.output for a, b in both)}/{len(both)}" if both else None


def ties(peer: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]], margins: Callable[[int], Margin]) -> int:
    """Requests that differ, but every row of them first at a value that the peer preferred by less than TIE.

    margins: of a case, by how much the peer preferred the value of (row, place); asked once a case, and only where
    outputs differ.
    """
    of_case, found = cache(margins), 0
    for case, (first, second) in enumerate(zip(peer, own, strict=True)):
        for a, b in zip(first, second, strict=True):
            if isinstance(a, Run) and isinstance(b, Run) and a.output != b.output:
                found += all(
                    of_case(case)(row, _first(x, y)) < TIE
                    for row, (x, y) in enumerate(zip(a.output, b.output, strict=True))
                    if x != y
                )
    return found


def _first(a: Sequence, b: Sequence) -> int:
    """Where two sequences of one length first differ."""
    return next(place for place, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
