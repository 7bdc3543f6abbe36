"""Acceptance by drafted position, and accept length against temperature."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmspec.evaluate.report.rows import Table, cell_title
from mmspec.evaluate.report.style import GRID, Look, keep, legend, panels

LONGEST = 16  # positions that plots show


def acceptance_by_position(samples: Sequence[dict], longest: int = LONGEST) -> list[float]:
    """Of the rounds behind the first, which has no draft, the share that kept at least k drafted values, k = 1, 2.. as far as
    any round came. Rounds that drafted less than k count: their drafts did not reach that far."""
    kept = [count for one in samples if one["failed"] is None for count in one["accepted"][1:] if count is not None]
    most = min(max(kept, default=0), longest)
    return [sum(count >= k for count in kept) / len(kept) for k in range(1, most + 1)]


def position_rows(tables: Sequence[Table]) -> list[dict]:
    """A record per cell and position, for CSV."""
    return [
        {"table": table.name, "method": cell_title(samples[0]), "position": place, "share": round(share, 6)}
        for table in tables
        for samples in table.cells.values()
        for place, share in enumerate(acceptance_by_position(samples), 1)
    ]


def draw_by_position(tables: Sequence[Table], look: Mapping[str, Look], stem: Path) -> list[Path]:
    """A panel per table, a line per method that drafts; none where none does."""
    lines = {
        table.name: {cell_title(samples[0]): acceptance_by_position(samples) for samples in table.cells.values()}
        for table in tables
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


def by_temperature(rows: Sequence[dict], said: Mapping[str, str]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """By model, by method: (temperature, accept length), of methods run at two temperatures or more.   said: by
    table, what its cells share beside the temperature."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row["accept_length"] is not None:
            found.setdefault(said[row["table"]], {}).setdefault(row["method"], []).append(
                (row["temperature"], row["accept_length"])
            )
    several = {
        title: {name: sorted(points) for name, points in methods.items() if len(points) > 1}
        for title, methods in found.items()
    }
    return {title: methods for title, methods in several.items() if methods}


def without_temperature(said: Mapping[str, object]) -> str:
    """What tables of one model share, as text."""
    return json.dumps({name: value for name, value in said.items() if name != "temperature"}, sort_keys=True)


def draw_by_temperature(
    rows: Sequence[dict], said: Mapping[str, str], look: Mapping[str, Look], stem: Path
) -> list[Path]:
    """A panel per model; none where no method was run at two temperatures."""
    found = by_temperature(rows, said)
    if not found:
        return []
    names = list(dict.fromkeys(name for methods in found.values() for name in methods))
    with panels(len(found), 1) as (figure, axes):
        handles = {}
        for axis, (title, methods) in zip(axes.flat, found.items(), strict=True):
            for name, points in methods.items():
                style = look[name]
                dashes = "-" if style.filled else (0, (4, 1.5))
                xs, ys = zip(*points, strict=True)
                (handles[name],) = axis.plot(
                    xs, ys, ls=dashes, lw=1.0, **style.marks(7.5 if style.mark == "*" else 4.2)
                )
            axis.set_title(json.loads(title)["model"], loc="left")
            axis.set(xlabel="temperature", ylabel="values a target pass")
            axis.set_ylim(bottom=0)
            axis.grid(color=GRID, lw=0.4)
        legend(figure, [handles[name] for name in names], names)
        return keep(figure, stem)
