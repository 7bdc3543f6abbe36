"""How far drafts stand: the share of rounds that keep a draft's first value, its first two..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmspec.evaluate.report.rows import Table, titled
from mmspec.evaluate.report.style import GRID, Look, keep, legend, panels

LONGEST = 16  # positions that plots show


def by_position(samples: Sequence[dict], longest: int = LONGEST) -> list[float]:
    """Of the rounds behind the first, which has no draft, the share that kept at least k drafted values, k = 1, 2.. as far as
    any round came. Rounds that drafted less than k count: their drafts did not reach that far."""
    kept = [count for one in samples if one["failed"] is None for count in one["accepted"][1:] if count is not None]
    most = min(max(kept, default=0), longest)
    return [sum(count >= k for count in kept) / len(kept) for k in range(1, most + 1)]


def rows(tables: Sequence[Table]) -> list[dict]:
    """A record per cell and position, for CSV."""
    return [
        {"table": table.name, "method": titled(samples[0]), "position": place, "share": round(share, 6)}
        for table in tables
        for samples in table.cells.values()
        for place, share in enumerate(by_position(samples), 1)
    ]


def draw(tables: Sequence[Table], look: Mapping[str, Look], stem: Path) -> list[Path]:
    """A panel per table, a line per method that drafts; none where none does."""
    lines = {
        table.name: {titled(samples[0]): by_position(samples) for samples in table.cells.values()} for table in tables
    }
    lines = {
        title: {name: shares for name, shares in found.items() if shares and name in look}
        for title, found in lines.items()
    }
    lines = {title: found for title, found in lines.items() if found}
    if not lines:
        return []
    across = min(2, len(lines))
    down = -(-len(lines) // across)
    names = list(dict.fromkeys(name for found in lines.values() for name in found))
    with panels(across, down) as (figure, axes):
        handles = {}
        for axis, (title, found) in zip(axes.flat, lines.items(), strict=False):
            for name, shares in found.items():
                style = look[name]
                dashes = "-" if style.filled else (0, (4, 1.5))
                (handles[name],) = axis.plot(range(1, len(shares) + 1), shares, ls=dashes, lw=1.0, **style.marks(3.6))
            axis.set_title(title, loc="left")
            axis.set(xlabel="drafted value", ylabel="share of rounds that keep it", ylim=(0, 1.02))
            axis.set_xlim(0.5, max(map(len, found.values())) + 0.5)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.grid(color=GRID, lw=0.4)
        for axis in axes.flat[len(lines) :]:
            axis.set_axis_off()
        legend(figure, [handles[name] for name in names], names)
        return keep(figure, stem)
