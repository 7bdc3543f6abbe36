"""Two lanes beside each other. Whatever carries `data-t`, a moment in seconds, appears then when the page replays them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from mmspec.web.runs.lane import Lane

LEGEND = {
    "accepted": "drafted and accepted",
    "corrected": "the target's own, where a draft was rejected",
    "own": "the target's own",
    "drafted": "being judged",
}

DENSE = 120  # bars that have room for gaps between them


def lanes(parts: Sequence[tuple[Lane, str]], *, unit: str, replay: bool, legend: Iterable[str]) -> str:
    """Lanes and what stands in each. unit: of their values.   replay: they are done, and the page may play them.
    legend: names in LEGEND.
    """
    longest = max((lane.seconds for lane, _ in parts), default=0.0)
    shown = "".join(_lane(lane, inner, unit) for lane, inner in parts)
    player = _player(longest) if replay else ""
    state = f' data-replay="{longest:.4f}"' if replay else ""
    return f'<div class="mm-lanes"{state}>{player}<div class="mm-pair">{shown}</div>{key(legend)}</div>'


def _player(longest: float) -> str:
    paces = "".join(
        f'<option value="{pace}"{" selected" if pace == 1 else ""}>{text}</option>'
        for pace, text in ((1, "at true speed"), (0.25, "four times slower"), (0.1, "ten times slower"))
    )
    return (
        '<div class="mm-player"><button type="button" class="mm-replay">Replay both lanes</button>'
        f'<label>Speed <select class="mm-pace">{paces}</select></label>'
        '<span class="mm-said">Each lane was timed alone, one after the other.</span>'
        f'<progress class="mm-time" max="{longest:.4f}" value="{longest:.4f}" aria-label="replay"></progress></div>'
    )


def _lane(lane: Lane, inner: str, unit: str) -> str:
    clock = f'<span class="mm-clock" data-until="{lane.seconds:.4f}">{lane.seconds:.2f} s</span>' if lane.rounds else ""
    alert = f'<p class="mm-warning">{escape(lane.stopped)}</p>' if lane.stopped else ""
    return (
        f'<section class="mm-lane" aria-label="{escape(lane.title)}"><h3>{escape(lane.title)} {clock}</h3>{inner}'
        f"{alert}{strip(lane, unit)}</section>"
    )


def strip(lane: Lane, unit: str) -> str:
    """A bar a round, as high as the values it gave."""
    if not lane.rounds:
        return ""
    most = max(one.kept for one in lane.rounds) + 1
    bars = "".join(
        f'<i data-t="{one.seconds:.4f}" class="{"accepted" if one.kept else "own"}" '
        f'style="height:{100 * (one.kept + 1) / most:.0f}%" title="round {number}: {one.kept} drafted {unit} kept"></i>'
        for number, one in enumerate(lane.rounds, 1)
    )
    kept = sum(one.kept for one in lane.rounds)
    told = f"{len(lane.rounds)} rounds, {kept} drafted {unit} kept"
    dense = " dense" if len(lane.rounds) > DENSE else ""
    return f'<div class="mm-strip{dense}" role="img" aria-label="{told}">{bars}</div><p class="mm-small">{told}</p>'


def text(lane: Lane) -> str:
    """The text of a lane, every piece in the colour of who wrote it."""
    pieces = [(one.seconds, *piece) for one in lane.rounds for piece in one.marks["pieces"]]
    spans = "".join(
        f'<span class="{"accepted" if drafted else "own"}" data-t="{moment:.4f}">{escape(words)}</span>'
        for moment, words, drafted in pieces
    )
    return f'<p class="mm-text">{spans}</p>'


def grid(lane: Lane, rows: int, columns: int, place: Callable[[int], tuple[int, int]]) -> str:
    """The cells of a picture as they fill, and those that a round judges for as long as it does.

    place: (row, column) of a cell.
    """
    paths, before = [], 0.0
    for one in lane.rounds:
        for name in ("accepted", "corrected", "own"):
            if cells := one.marks.get(name):
                paths.append(f'<path class="{name}" data-t="{one.seconds:.4f}" d="{_squares(cells, place)}"/>')
        if cells := one.marks.get("drafted"):
            moments = f'data-from="{before:.4f}" data-to="{one.seconds:.4f}"'
            paths.append(f'<path class="drafted" {moments} hidden d="{_squares(cells, place)}"/>')
        before = one.seconds
    filled = sum(len(one.marks.get(name, ())) for one in lane.rounds for name in ("accepted", "corrected", "own"))
    return (
        f'<svg class="mm-grid" viewBox="0 0 {columns} {rows}" role="img" '
        f'aria-label="{filled} of {rows * columns} values">{"".join(paths)}</svg>'
    )


def _squares(cells: Sequence[int], place: Callable[[int], tuple[int, int]]) -> str:
    return "".join(f"M{column}.05 {row}.05h.9v.9h-.9z" for row, column in map(place, cells))


def key(names: Iterable[str]) -> str:
    """What the colours mean."""
    shown = "".join(f'<span><i class="mm-dot {name}"></i>{LEGEND[name]}</span>' for name in names)
    return f'<p class="mm-legend">{shown}</p>' if shown else ""
