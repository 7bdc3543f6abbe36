"""Whether a method gave another one's output, and how near a tie the place was where they part."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cache

from mmspec.evaluate.engine.ratios import pairs
from mmspec.evaluate.engine.runs import Attempt, Run

TIE = 1e-3  # passes over several values and over one may round log-weights this differently in float32
Margin = Callable[[int, int, Hashable], float]


def identical(peer: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> str | None:
    """How many requests gave the peer's output, as "29/30"; None where none of them was completed by both."""
    both = pairs(peer, own)
    return f"{sum(a.output == b.output for a, b in both)}/{len(both)}" if both else None


def parting(
    peer: Sequence[Sequence[Attempt]],
    own: Sequence[Sequence[Attempt]],
    margins: Callable[[int], Margin],
    tie: float | None = None,
) -> dict:
    """Where requests part from the peer's output: `ties`, how many of them do so only at values that the peer preferred to the
    method's by less than `tie` (TIE where left out), and `margin`, the largest such preference; None where none differ.

    margins: of a case, by how much the peer preferred its value of (row, place) to another value; asked once a case, and
    only where outputs differ.
    """
    found = _parted(peer, own, margins)
    within = TIE if tie is None else tie
    return {
        "ties": sum(margin < within for margin in found),
        "margin": max((one for one in found if one < math.inf), default=None),
    }


def _parted(
    peer: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]], margins: Callable[[int], Margin]
) -> list[float]:
    """Of every request that differs, the margin at the first place where a row does, the largest of its rows."""
    of_case, found = cache(margins), []
    for case, (first, second) in enumerate(zip(peer, own, strict=True)):
        for a, b in zip(first, second, strict=True):
            if isinstance(a, Run) and isinstance(b, Run) and a.output != b.output:
                rows = enumerate(zip(a.output, b.output, strict=True))
                found.append(max(_margin(of_case(case), row, x, y) for row, (x, y) in rows if x != y))
    return found


def _margin(margin: Margin, row: int, peer: Sequence, own: Sequence) -> float:
    """At the first difference of two rows; infinite where one of them only goes on behind the other."""
    place = _first(peer, own)
    return margin(row, place, own[place]) if place < min(len(peer), len(own)) else math.inf


def _first(a: Sequence, b: Sequence) -> int:
    """Where two sequences first differ: behind the shorter one where it is how the other begins."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((place for place, (x, y) in pairs if x != y), min(len(a), len(b)))
