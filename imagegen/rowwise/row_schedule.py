"""The rows of an image or video as runs of values, and the places that a fixed window feeds in each round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mmspec.imagegen.geometry import Geometry


@dataclass(frozen=True, slots=True)
class RowSpan:
    start: int  # the index of its first code
    codes: int  # their number
    first: bool  # whether it is the top row of a frame, which starts only after all values before it
    source: int  # of the stand-in's newest value: two rows above, or the row above where that is a frame's first row


@lru_cache(maxsize=64)
def row_spans(geometry: Geometry) -> tuple[RowSpan, ...]:
    spans: list[RowSpan] = []
    start = 0
    for rows, cols in geometry.grids:
        for row in [*range(rows)] * geometry.frames:
            source = len(spans) - (2 if row > 1 else 1)
            spans.append(RowSpan(start, cols, row == 0, max(source, 0)))
            start += cols + (geometry.row_end is not None)
    return tuple(spans)


@dataclass(frozen=True, slots=True)
class ScheduledNode:
    place: int  # where it is fed
    source: int  # the place that it is read from; another for a stand-in
    open: bool = True  # whether the value behind it is drawn


@lru_cache(maxsize=64)
def row_schedule(geometry: Geometry, window: int) -> tuple[tuple[ScheduledNode, ...], ...]:
    """Return the rounds after the prefill, which settles place 0. A row opens when the row above has `window` values or
    is complete, and then gains a value per round. While the code before its first value is missing, a stand-in is fed,
    the newest value of `RowSpan.source`. The true last value of a row is fed as soon as it is known."""
    lines = row_spans(geometry)
    counts = [0] * len(lines)
    counts[0] = 1
    fed: set[int] = set()
    rounds = []
    while counts[-1] < lines[-1].codes:
        growing = [
            n for n, line in enumerate(lines) if counts[n] < line.codes and _row_is_open(lines, counts, n, window)
        ]
        feeds = [_next_node(lines, counts, n, geometry.row_end is not None) for n in growing]
        fed |= {feed.place for feed in feeds if feed.place == feed.source}
        late = [line.start + line.codes - 1 for n, line in enumerate(lines) if counts[n] == line.codes]
        feeds += [ScheduledNode(place, place, False) for place in late if place not in fed]
        fed |= set(late)
        for n in growing:
            counts[n] += 1
        rounds.append(tuple(feeds))
    return tuple(rounds)


def _row_is_open(lines: tuple[RowSpan, ...], counts: list[int], n: int, window: int) -> bool:
    if counts[n] or counts[n - 1] == lines[n - 1].codes:
        return True
    return not lines[n].first and counts[n - 1] >= window


def _next_node(lines: tuple[RowSpan, ...], counts: list[int], n: int, ends: bool) -> ScheduledNode:
    place = lines[n].start + counts[n] - 1
    if counts[n] or ends or counts[n - 1] == lines[n - 1].codes:
        return ScheduledNode(place, place)
    above = lines[n].source
    return ScheduledNode(place, lines[above].start + counts[above] - 1)
