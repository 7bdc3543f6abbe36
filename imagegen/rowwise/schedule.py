"""Which places a fixed window feeds in each round: a function of the geometry alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.rowwise.lines import Line, lines_of


@dataclass(frozen=True, slots=True)
class Feed:
    """place: where a value is fed.   source: the place its value is read from, another one for a stand-in.
    open: whether the value behind it is wanted.
    """

    place: int
    source: int
    open: bool = True


@lru_cache(maxsize=64)
def schedule(geometry: Geometry, window: int) -> tuple[tuple[Feed, ...], ...]:
    """The rounds after the prefill, which settles place 0.

    A line opens when the line above has `window` values or is complete, and then takes one value a round. The value before
    its first place is the row's end where the model has one; while it is a code that is not there yet, a stand-in is fed:
    the newest value of the line above that one. The true last value of a line is fed as soon as it is there.
    """
    lines = lines_of(geometry)
    counts = [0] * len(lines)
    counts[0] = 1
    fed: set[int] = set()
    rounds = []
    while counts[-1] < lines[-1].codes:
        growing = [n for n, line in enumerate(lines) if counts[n] < line.codes and _runs(lines, counts, n, window)]
        feeds = [_ask(lines, counts, n, geometry.row_end is not None) for n in growing]
        fed |= {feed.place for feed in feeds if feed.place == feed.source}
        late = [line.start + line.codes - 1 for n, line in enumerate(lines) if counts[n] == line.codes]
        feeds += [Feed(place, place, False) for place in late if place not in fed]
        fed |= set(late)
        for n in growing:
            counts[n] += 1
        rounds.append(tuple(feeds))
    return tuple(rounds)


def _runs(lines: tuple[Line, ...], counts: list[int], n: int, window: int) -> bool:
    if counts[n] or counts[n - 1] == lines[n - 1].codes:
        return True
    return not lines[n].first and counts[n - 1] >= window


def _ask(lines: tuple[Line, ...], counts: list[int], n: int, ends: bool) -> Feed:
    place = lines[n].start + counts[n] - 1
    if counts[n] or ends or counts[n - 1] == lines[n - 1].codes:
        return Feed(place, place)
    above = lines[n].source
    return Feed(place, lines[above].start + counts[above] - 1)
