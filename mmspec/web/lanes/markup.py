"""Lanes as HTML: their replay, cells, video blocks, costs, and the sentence that compares them.

Whatever carries `data-t`, a moment in seconds, appears then when the page replays the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from mmspec.web.lanes.lane import Lane

ROUTES = {"accepted": "the draft stands", "corrected": "redrawn by the model", "own": "drawn by the model"}


def block_tiles(lane: Lane) -> str:
    """A tile a block."""
    tiles = []
    for one in lane.rounds:
        for number, name, score in one.marks["blocks"]:
            shown = "no score" if score is None else f"score {score:.3g}"
            tiles.append(
                f'<li class="{name}" data-t="{one.seconds:.4f}"><strong>block {number + 1}</strong> {ROUTES[name]}'
                f'<span class="mm-small">{shown}, {one.seconds:.2f} s</span></li>'
            )
    return f'<ol class="mm-blocks">{"".join(tiles)}</ol>'


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


RELAXED = (
    "Relaxed: what the fast lane makes no longer has the model's own law. It may be worse, and this page cannot tell by how "
    "much."
)


def figures(lane: Lane) -> dict[str, Any]:
    """What a lane cost, for the table and for JSON."""
    stats, made = lane.stats, sum(lane.stats.emitted) if lane.stats else 0
    if stats is None:
        return {}
    return {
        "lane": lane.title,
        "values": made,
        "seconds": round(lane.seconds, 4),
        "decode_seconds": round(lane.decode_seconds, 4),
        "values_per_second": round(made / max(lane.seconds, 1e-9), 1),
        "target_passes": stats.target_passes,
        "accept_length": round(stats.accept_length, 3),
        "drafter_passes": stats.drafter_passes,
        "drafter": stats.drafter,
        "rule": stats.rule,
        "exact": stats.exact,
        "finished": lane.finished,
    }


def times(plain: Lane, fast: Lane) -> tuple[float, float]:
    """How many times as fast the second lane was, per value: end to end, and after the prefill."""
    one, other = (max(sum(lane.stats.emitted), 1) for lane in (plain, fast))
    whole = (plain.seconds / one) / max(fast.seconds / other, 1e-9)
    return whole, (plain.decode_seconds / one) / max(fast.decode_seconds / other, 1e-9)


def headline(plain: Lane, fast: Lane, same: bool | None, unit: str) -> str:
    """One sentence on speed and on what became of the output. same: all values are equal; None where it is not known."""
    whole, decoded = times(plain, fast)
    speed = f"{whole:.2f} times the speed of plain decoding end to end, {decoded:.2f} times after the prefill"
    if same and fast.stats.exact:
        law, name = f"Identical: both lanes have the same {sum(fast.stats.emitted)} {unit}", "same"
    elif same:
        law, name = f"Relaxed, yet identical here: the same {unit}, which this rule does not promise", "relaxed"
    elif fast.stats.exact:
        law, name = "Exact: the fast lane is another draw from the same law, with other random numbers", "exact"
    else:
        law, name = "Relaxed: not the model's own law", "relaxed"
    passes = f"{fast.stats.target_passes} target passes instead of {plain.stats.target_passes}"
    return f'<p class="mm-headline {name}"><strong>{law}.</strong> {speed}; {passes}.</p>'


def table(parts: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Figures of lanes as an HTML table."""
    said = {
        "values": (unit, ",d"),
        "seconds": ("seconds, end to end", ".2f"),
        "decode_seconds": ("seconds after the prefill", ".2f"),
        "values_per_second": (f"{unit} a second", ".1f"),
        "target_passes": ("target passes", ",d"),
        "accept_length": (f"{unit} a pass", ".2f"),
        "drafter_passes": ("drafter passes", ",d"),
        "rule": ("rule", ""),
    }
    head = "".join(f'<th scope="col">{escape(str(part["lane"]))}</th>' for part in parts)
    lines = "".join(
        f'<tr><th scope="row">{title}</th>{"".join(f"<td>{escape(format(part[name], how))}</td>" for part in parts)}</tr>'
        for name, (title, how) in said.items()
    )
    shown = f'<table class="mm-table"><thead><tr><td></td>{head}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="mm-scroll" tabindex="0">{shown}</div>'


def status(text: str, state: str = "idle", value: float | None = None) -> str:
    """A line on what is going on. state: "idle", "running", "done", "cancelled", "refused".   value: from 0 to 1."""
    bar = "" if value is None else f'<progress max="1" value="{value:.3f}" aria-label="progress"></progress>'
    return f'<p class="mm-status" role="status" data-state="{state}">{escape(text)}{bar}</p>'
