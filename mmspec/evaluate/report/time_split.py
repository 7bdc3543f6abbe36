"""Where the time goes: what every part takes of plain decoding's time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmspec.evaluate.report.rows import Table, cell_title
from mmspec.evaluate.report.style import GRID, WIDE, keep, panels

PARTS = ("prefill", "target", "draft", "verify", "vae", "reward", "other")
_COLOURS = {"prefill": "#B3B3B3", "target": "#0072B2", "draft": "#E69F00", "verify": "#009E73", "vae": "#CC79A7",
            "reward": "#D55E00", "other": "#E3E3E3"}  # fmt: skip
_ROW = 0.24  # inches of a bar


def split(samples: Sequence[dict]) -> dict[str, float]:
    """Mean seconds of a token by part, over samples that tell of theirs; {} where none does."""
    told = [one for one in samples if one["failed"] is None and one["time"]["parts"] is not None]
    tokens = sum(one["tokens"] for one in told)
    names = [name for name in PARTS if any(name in one["time"]["parts"] for one in told)]
    return {name: sum(one["time"]["parts"].get(name, 0.0) for one in told) / tokens for name in names} if tokens else {}


def shares(table: Table) -> dict[str, dict[str, float]]:
    """By method, every part over plain decoding's whole; {} where that is not known."""
    found = {cell: split(samples) for cell, samples in table.cells.items()}
    whole = sum(found.get(table.plain, {}).values()) if table.plain else 0.0
    if not whole:
        return {}
    return {
        cell_title(table.cells[cell][0]): {name: seconds / whole for name, seconds in parts.items()}
        for cell, parts in found.items()
        if parts
    }


def rows(tables: Sequence[Table]) -> list[dict]:
    """A record per cell and part, for CSV."""
    return [
        {"table": table.name, "method": name, "part": part, "of_plain": round(share, 6)}
        for table in tables
        for name, parts in shares(table).items()
        for part, share in parts.items()
    ]


def draw(tables: Sequence[Table], stem: Path) -> list[Path]:
    """A panel per table, a bar per method, plain decoding's first, whose length is 1."""
    found = {table.name: shares(table) for table in tables}
    found = {title: bars for title, bars in found.items() if bars}
    if not found:
        return []
    longest = max(map(len, found.values()))
    parts = [name for name in PARTS if any(name in bar for bars in found.values() for bar in bars.values())]
    across = min(2, len(found))
    with panels(across, -(-len(found) // across), 1.25 * WIDE, _ROW * longest + 0.75) as (figure, axes):
        handles, beside = {}, None
        for number, (axis, (title, bars)) in enumerate(zip(axes.flat, found.items(), strict=False)):
            names, left = list(bars), [0.0] * len(bars)
            for part in parts:
                lengths = [bars[name].get(part, 0.0) for name in names]
                handles[part] = axis.barh(names, lengths, left=left, height=0.7, color=_COLOURS[part], label=part)
                left = [start + length for start, length in zip(left, lengths, strict=True)]
            axis.axvline(1, color="black", lw=0.7, ls=(0, (2, 2)))
            axis.invert_yaxis()
            axis.set_title(title, loc="left")
            axis.set(xlabel="time a token, plain decoding = 1")
            axis.tick_params(axis="y", length=0)
            if number % across and names == beside:  # the panel on the left has the same names
                axis.tick_params(labelleft=False)
            beside = names
            axis.grid(axis="x", color=GRID, lw=0.4)
        for axis in axes.flat[len(found) :]:
            axis.set_axis_off()
        figure.legend(
            [handles[part] for part in parts], parts, loc="outside lower center", ncols=len(parts), frameon=False
        )
        return keep(figure, stem)
