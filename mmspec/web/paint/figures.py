"""What both lanes cost, and the one sentence that compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mmspec.web.runs.lane import Lane

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
