"""Where tokens and time go: acceptance by draft position, accept length against temperature, and time by part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmspec.evaluate.report.rows import Table, cell_title
from mmspec.evaluate.report.style import GRID, WIDE, Look, draw_grid

LONGEST = 16  # positions that plots show
PARTS = {"prefill": "#B3B3B3", "target": "#0072B2", "draft": "#E69F00", "verify": "#009E73", "vae": "#CC79A7",
         "reward": "#D55E00", "other": "#E3E3E3"}  # fmt: skip
_ROW = 0.24  # inches of a bar


def acceptance_by_position(samples: Sequence[dict], longest: int = LONGEST) -> list[float]:
    """Return the share of rounds that accepted at least k draft tokens, for k = 1, 2, ... up to the longest accepted.

    The first round has no draft and is left out. Rounds with fewer than k draft tokens count as not reaching k.
    """
    counts = [count for one in samples if one["failed"] is None for count in one["accepted"][1:] if count is not None]
    most = min(max(counts, default=0), longest)
    return [sum(count >= k for count in counts) / len(counts) for k in range(1, most + 1)]


def position_rows(tables: Sequence[Table]) -> list[dict]:
    """Return a record per cell and position, for CSV."""
    return [
        {"table": table.name, "method": cell_title(samples[0]), "position": place, "share": round(share, 6)}
        for table in tables
        for samples in table.cells.values()
        for place, share in enumerate(acceptance_by_position(samples), 1)
    ]


def draw_by_position(tables: Sequence[Table], look: Mapping[str, Look], stem: Path) -> list[Path]:
    """Draw a panel per table with a line per method that drafts; return no files without any."""
    lines = {
        table.name: {cell_title(samples[0]): acceptance_by_position(samples) for samples in table.cells.values()}
        for table in tables
    }
    drafted = {
        title: {name: shares for name, shares in lines_of_table.items() if shares and name in look}
        for title, lines_of_table in lines.items()
    }

    def paint(axis: Any, lines_of_table: Mapping[str, list[float]]) -> dict[str, Any]:
        axis.set(xlabel="drafted value", ylabel="share of rounds that accept it", ylim=(0, 1.02))
        axis.set_xlim(0.5, max(map(len, lines_of_table.values())) + 0.5)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(color=GRID, lw=0.4)
        return {
            name: axis.plot(range(1, len(shares) + 1), shares, ls=look[name].dashes, lw=1.0, **look[name].marks(3.6))[0]
            for name, shares in lines_of_table.items()
        }

    return draw_grid(
        {title: lines_of_table for title, lines_of_table in drafted.items() if lines_of_table}, stem, paint
    )


def by_temperature(
    rows: Sequence[dict], settings: Mapping[str, str]
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return (temperature, accept length) by model and method, for methods at two or more temperatures.

    Args:
        rows: The rows of the tables.
        settings: By table, the settings that its cells share, without the temperature.
    """
    by_model: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row["accept_length"] is not None:
            by_model.setdefault(settings[row["table"]], {}).setdefault(row["method"], []).append(
                (row["temperature"], row["accept_length"])
            )
    several = {
        title: {name: sorted(points) for name, points in methods.items() if len(points) > 1}
        for title, methods in by_model.items()
    }
    return {title: methods for title, methods in several.items() if methods}


def without_temperature(settings: Mapping[str, object]) -> str:
    """Return the settings that tables of the same model share, as text."""
    return json.dumps({name: value for name, value in settings.items() if name != "temperature"}, sort_keys=True)


def draw_by_temperature(
    rows: Sequence[dict], settings: Mapping[str, str], look: Mapping[str, Look], stem: Path
) -> list[Path]:
    """Draw a panel per model; return no files where no method ran at two temperatures."""

    def paint(axis: Any, methods: Mapping[str, list[tuple[float, float]]]) -> dict[str, Any]:
        handles = {}
        for name, points in methods.items():
            marks = look[name].marks(7.5 if look[name].mark == "*" else 4.2)
            (handles[name],) = axis.plot(*zip(*points, strict=True), ls=look[name].dashes, lw=1.0, **marks)
        axis.set(xlabel="temperature", ylabel="values a target pass")
        axis.set_ylim(bottom=0)
        axis.grid(color=GRID, lw=0.4)
        return handles

    by_model = by_temperature(rows, settings)
    return draw_grid(by_model, stem, paint, len(by_model), lambda name: json.loads(name)["model"])


def seconds_by_part(samples: Sequence[dict]) -> dict[str, float]:
    """Return the mean seconds per token by part, over samples that report them; {} without any."""
    reporting = [one for one in samples if one["failed"] is None and one["time"]["parts"] is not None]
    tokens = sum(one["tokens"] for one in reporting)
    names = [name for name in PARTS if any(name in one["time"]["parts"] for one in reporting)]
    return (
        {name: sum(one["time"]["parts"].get(name, 0.0) for one in reporting) / tokens for name in names}
        if tokens
        else {}
    )


def time_shares(table: Table) -> dict[str, dict[str, float]]:
    """Return, by method, the time of every part relative to plain decoding's total; {} where that is unknown."""
    seconds = {cell: seconds_by_part(samples) for cell, samples in table.cells.items()}
    whole = sum(seconds.get(table.plain, {}).values()) if table.plain else 0.0
    if not whole:
        return {}
    return {
        cell_title(table.cells[cell][0]): {name: took / whole for name, took in parts.items()}
        for cell, parts in seconds.items()
        if parts
    }


def time_rows(tables: Sequence[Table]) -> list[dict]:
    """Return a record per cell and part, for CSV."""
    return [
        {"table": table.name, "method": name, "part": part, "of_plain": round(share, 6)}
        for table in tables
        for name, parts in time_shares(table).items()
        for part, share in parts.items()
    ]


def draw_time(tables: Sequence[Table], stem: Path) -> list[Path]:
    """Draw a panel per table with a bar per method; plain decoding's bar comes first and has length 1."""
    bars_by_table = {table.name: bars for table in tables if (bars := time_shares(table))}
    parts = [name for name in PARTS if any(name in bar for bars in bars_by_table.values() for bar in bars.values())]
    drawn: list[list[str]] = []

    def paint(axis: Any, bars: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        names, left, handles = list(bars), [0.0] * len(bars), {}
        for part in parts:
            lengths = [bars[name].get(part, 0.0) for name in names]
            handles[part] = axis.barh(names, lengths, left=left, height=0.7, color=PARTS[part], label=part)
            left = [start + length for start, length in zip(left, lengths, strict=True)]
        axis.axvline(1, color="black", lw=0.7, ls=(0, (2, 2)))
        axis.invert_yaxis()
        axis.set(xlabel="time a token, plain decoding = 1")
        # the panel on the left may have the same names
        axis.tick_params(axis="y", length=0, labelleft=not (len(drawn) % 2 and names == drawn[-1]))
        axis.grid(axis="x", color=GRID, lw=0.4)
        drawn.append(names)
        return handles

    tall = _ROW * max(map(len, bars_by_table.values()), default=0) + 0.75
    return draw_grid(bars_by_table, stem, paint, wide=1.25 * WIDE, tall=tall)
