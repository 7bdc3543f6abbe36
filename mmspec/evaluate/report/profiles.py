"""Where tokens and time go: acceptance by draft position, accept length against temperature, and time by part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmspec.evaluate.report.labels import Label, place, short_names
from mmspec.evaluate.report.palette import GRID, Look, known
from mmspec.evaluate.report.plots import LABELLED, points_along
from mmspec.evaluate.report.rows import Table, cell_title
from mmspec.evaluate.report.style import FORMATS, TALL, WIDE, draw_grid, figure_of, keep

LONGEST = 16  # positions that plots show
PARTS = {"prefill": "#B3B3B3", "target": "#0072B2", "draft": "#E69F00", "verify": "#009E73", "vae": "#CC79A7",
         "reward": "#D55E00", "other": "#E3E3E3"}  # fmt: skip
_ROW = 0.3  # inches of a bar


def acceptance_by_position(samples: Sequence[dict], longest: int = LONGEST) -> list[float]:
    """Return the share of rounds that accepted at least k draft tokens, for k = 1, 2, ... up to the longest accepted.
    The first round has no draft and is left out. Rounds with fewer than k draft tokens count as not reaching k."""
    counts = [
        count for sample in samples if sample["failed"] is None for count in sample["accepted"][1:] if count is not None
    ]
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
    """Draw a panel per table, a line per method that drafts; return the files, none where none drafts."""
    contents = {
        table.name: {cell_title(samples[0]): acceptance_by_position(samples) for samples in table.cells.values()}
        for table in tables
    }
    return draw_positions(contents, look, stem)


def draw_positions(
    contents: Mapping[str, Mapping[str, Sequence[float]]],
    look: Mapping[str, Look],
    stem: Path,
    kinds: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw the acceptance by position into files STEM.KIND: by table and method, the share of rounds that keep at least
    1, 2, .. drafted values."""
    curves = {
        title: {
            name: (range(1, len(shares) + 1), shares) for name, shares in methods.items() if shares and name in look
        }
        for title, methods in contents.items()
    }
    axes = {"xlabel": "position of the drafted value", "ylabel": "share of rounds that keep it (better →)"}
    return _draw_curves(curves, look, stem, axes | {"ylim": (0, 1.02)}, kinds)


def _draw_curves(
    contents: Mapping[str, Mapping[str, tuple]],
    look: Mapping[str, Look],
    stem: Path,
    settings: Mapping[str, Any],
    kinds: Sequence[str],
) -> list[Path]:
    """Draw a panel per entry, with the names of methods beside their lines; return the files, none of nothing."""
    contents = {title: lines for title, lines in contents.items() if lines}
    if not contents:
        return []
    across = min(2, len(contents))
    wide, tall = (WIDE, TALL) if across > 1 else (2 * WIDE, 1.4 * TALL)
    with figure_of(across, -(-len(contents) // across), wide, tall) as (figure, axes):
        for axis, (title, lines) in zip(axes.flat, contents.items(), strict=False):
            for name, (xs, ys) in lines.items():
                marks = look[name].marks(12 if look[name].mark == "*" else 5)
                axis.plot(xs, ys, ls=look[name].dashes, lw=1.4, **marks)
            axis.set(**settings)
            axis.set_title(title, loc="left")
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.grid(color=GRID, lw=0.4)
            left, right = axis.get_xlim()
            axis.set_xlim(left, right + 0.2 * (right - left))
        for axis in axes.flat[len(contents) :]:
            axis.set_axis_off()
        figure.canvas.draw()
        for axis, lines in zip(axes.flat, contents.values(), strict=False):
            shown = sorted(lines, key=lambda name: known(name) is None)[:LABELLED]
            short = short_names(shown)
            labels = [
                Label(short[name], look[name].colour, list(zip(*lines[name], strict=True))[::-1]) for name in shown
            ]
            place(axis, labels, [point for line in lines.values() for point in points_along(line)])
        return keep(figure, stem, kinds)


def by_temperature(
    rows: Sequence[dict], settings: Mapping[str, str]
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return (temperature, accept length) by model and method, for methods at two or more temperatures. `settings` has,
    by table, the settings that its cells share, without the temperature."""
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
    rows: Sequence[dict],
    settings: Mapping[str, str],
    look: Mapping[str, Look],
    stem: Path,
    kinds: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw a panel per model; return the files, none where no method was run at two temperatures."""
    curves = {
        json.loads(name)["model"]: {method: tuple(zip(*points, strict=True)) for method, points in methods.items()}
        for name, methods in by_temperature(rows, settings).items()
    }
    axes = {"xlabel": "temperature", "ylabel": "values per target pass (more →)"}
    return _draw_curves(curves, look, stem, axes, kinds)


def seconds_by_part(samples: Sequence[dict]) -> dict[str, float]:
    """Return the mean seconds per token by part, over samples that report them."""
    reporting = [sample for sample in samples if sample["failed"] is None and sample["time"]["parts"] is not None]
    tokens = sum(sample["tokens"] for sample in reporting)
    names = [name for name in PARTS if any(name in sample["time"]["parts"] for sample in reporting)]
    return (
        {name: sum(sample["time"]["parts"].get(name, 0.0) for sample in reporting) / tokens for name in names}
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
    """Draw a panel per table, a bar per method, plain decoding's first, whose length is 1; return the files."""
    return draw_shares({table.name: bars for table in tables if (bars := time_shares(table))}, stem)


def draw_shares(
    contents: Mapping[str, Mapping[str, Mapping[str, float]]], stem: Path, kinds: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw where the time goes into files STEM.KIND: by table and method, the time of each part over the whole time of
    plain decoding."""
    parts = [name for name in PARTS if any(name in bar for bars in contents.values() for bar in bars.values())]

    def paint(axis: Any, bars: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        names, left, handles = list(short_names(list(bars)).values()), [0.0] * len(bars), {}
        for part in parts:
            lengths = [bar.get(part, 0.0) for bar in bars.values()]
            handles[part] = axis.barh(names, lengths, left=left, height=0.7, color=PARTS[part], label=part)
            left = [start + length for start, length in zip(left, lengths, strict=True)]
        axis.axvline(1, color="black", lw=0.7, ls=(0, (2, 2)))
        axis.invert_yaxis()
        axis.set(xlabel="time per token, plain decoding = 1 (← faster)")
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", color=GRID, lw=0.4)
        return handles

    tall = _ROW * max(map(len, contents.values()), default=0) + 0.75
    return draw_grid(contents, stem, paint, 1, kinds, wide=2 * WIDE, tall=tall)
