"""Quality against speed: every cell with its intervals, and the front of cells that no other beats in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.evaluate.report.labels import Label, place, short_names
from mmspec.evaluate.report.measures import MEASURES, PLOTTED
from mmspec.evaluate.report.palette import GREY, GRID, Look, known
from mmspec.evaluate.report.style import FORMATS, figure_of, keep, looks
from mmspec.evaluate.report.tables import by_table

MOST = 2  # measures side by side
LABELLED, FEWER = 8, 5  # names in a panel, and in one of several tables
SPEED = "times plain decoding, end to end (faster →)"


def plotted_measures(rows: Sequence[dict]) -> list[str]:
    """Return the measures that plots show, best known first."""
    return [name for name in PLOTTED if any(row.get(name) is not None for row in rows)][:MOST]


def drawable(rows: Sequence[dict]) -> list[dict]:
    """Return the rows with a speed and a measure of quality."""
    return [
        row for row in rows if row["speedup_vs_ar"] is not None and any(row.get(name) is not None for name in PLOTTED)
    ]


def front(points: Sequence[tuple[float, float]], better: str) -> list[tuple[float, float]]:
    """Return the Pareto front of points (speed, quality), ordered by speed. A point is left out if another point is at
    least as good in both coordinates and better in either."""
    sign = 1 if better == "higher" else -1
    best: list[tuple[float, float]] = []
    for point in sorted(set(points), key=lambda pair: (-pair[0], -sign * pair[1])):
        if not best or sign * point[1] > sign * best[-1][1]:
            best.append(point)
    return best[::-1]


def draw(rows: Sequence[dict], stem: Path, kinds: Sequence[str] = FORMATS) -> list[Path]:
    """Draw a row of panels per table, a panel per measure, into files STEM.KIND; none where no row has both speed and
    quality."""
    tables = {title: drawable(part) for title, part in by_table(rows).items()}
    tables = {title: part for title, part in tables.items() if part}
    if not tables:
        return []
    look = looks(rows)
    across = max(len(plotted_measures(part)) for part in tables.values())
    wanted = [(title, name) for title, part in tables.items() for name in plotted_measures(part)]
    if across == 1:  # tables with a single measure are placed side by side
        across = min(2, len(tables))
    else:
        wanted = [
            spot for title in tables for spot in _filled_line([spot for spot in wanted if spot[0] == title], across)
        ]
    panels = [spot and (spot[0], tables[spot[0]], spot[1], look) for spot in wanted]
    return _figure(panels, across, LABELLED, stem, kinds)


def _figure(panels: Sequence[tuple | None], across: int, most: int, stem: Path, kinds: Sequence[str]) -> list[Path]:
    """Draw panels (title, rows, measure, looks), None for an empty place, and write the names into them."""
    size = (4.0, 3.3) if across > 1 else (8.0, 4.4)
    with figure_of(across, -(-len(panels) // across), *size) as (figure, axes):
        for axis, panel in zip_longest(axes.flat, panels):
            if panel is None:
                axis.set_axis_off()
                continue
            title, rows, name, look = panel
            _panel(axis, rows, name, _greyed(rows, name, look, most))
            axis.set_title(title, loc="left")
        figure.canvas.draw()
        for axis, panel in zip(axes.flat, panels, strict=False):
            if panel is not None:
                _, rows, name, look = panel
                _write_names(axis, rows, name, look, most)
        return keep(figure, stem, kinds)


def named_rows(rows: Sequence[dict], name: str, most: int) -> list[dict]:
    """Return the rows whose method a panel names: plain decoding, those that no other beats, then the best known."""
    rows = [row for row in rows if row.get(name) is not None]
    best = front([(row["speedup_vs_ar"], row[name]) for row in rows], MEASURES[name].better)
    order = sorted(
        rows,
        key=lambda row: (
            not row["plain"],
            (row["speedup_vs_ar"], row[name]) not in best,
            known(row["method"]) is None,
            not row["exact"],
        ),
    )
    return order[:most]


def _greyed(rows: Sequence[dict], name: str, look: Mapping[str, Look], most: int) -> dict[str, Look]:
    """Return the looks of a panel, grey for methods that it does not name."""
    shown = {row["method"] for row in named_rows(rows, name, most)}
    return {method: entry if method in shown else Look(GREY, "o", entry.filled) for method, entry in look.items()}


def _write_names(axis: Any, rows: Sequence[dict], name: str, look: Mapping[str, Look], most: int) -> None:
    shown = named_rows(rows, name, most)
    short = short_names([row["method"] for row in shown])
    labels = [
        Label(short[row["method"]], look[row["method"]].colour, [(row["speedup_vs_ar"], row[name])]) for row in shown
    ]
    points = [(row["speedup_vs_ar"], row[name]) for row in rows if row.get(name) is not None]
    ends = [
        end
        for row in rows
        if row.get(name) is not None and row.get(f"{name}_interval")
        for end in [(row["speedup_vs_ar"], value) for value in np.linspace(*row[f"{name}_interval"], 9)]
    ]
    place(axis, labels, points * 3 + ends)


def _filled_line(wanted: list[tuple[str, str]], across: int) -> list[tuple[str, str] | None]:
    """Return the panels of a table, padded to a line of the figure."""
    return [*wanted, *[None] * (across - len(wanted))]


def overview(rows: Sequence[dict], stem: Path, kinds: Sequence[str] = FORMATS) -> list[Path]:
    """Draw a panel per table with its first measure, all kinds of output beside one another; return the files."""
    tables = {title: drawable(part) for title, part in by_table(rows).items()}
    panels = [(title, part, plotted_measures(part)[0], looks(part)) for title, part in tables.items() if part]
    return _figure(panels, min(2, len(panels)), FEWER, stem, kinds) if panels else []


def _panel(axis: Any, rows: Sequence[dict], name: str, look: Mapping[str, Look]) -> None:
    points = [(row["speedup_vs_ar"], row[name]) for row in rows if row.get(name) is not None]
    steps = front(points, MEASURES[name].better)
    if len(steps) > 1:
        axis.step(*zip(*steps, strict=True), where="pre", color="#9E9E9E", lw=0.9, zorder=1)
    axis.axvline(1, color=GRID, lw=0.8, zorder=0)
    # plain decoding is drawn last, on top
    for row in sorted(rows, key=lambda row: row["plain"]):
        if row.get(name) is None:
            continue
        style = look[row["method"]]
        sides = {
            "xerr": _arms(row["speedup_vs_ar"], row["speedup_interval"]),
            "yerr": _arms(row[name], row[f"{name}_interval"]),
        }
        marks = style.marks(12 if row["plain"] else 7)
        arms = {"elinewidth": 0.8, "capsize": 1.6, "capthick": 0.8, "ecolor": (style.colour, 0.55)}
        above = 4 if row["plain"] else 3
        axis.errorbar(row["speedup_vs_ar"], row[name], **sides, **marks, **arms, ls="none", zorder=above)
    axis.set_xlabel(SPEED)
    axis.set_ylabel(f"{MEASURES[name].title} ({'better →' if MEASURES[name].better == 'higher' else '← better'})")
    axis.grid(color=GRID, lw=0.4)
    axis.margins(0.14)


def _arms(value: float, ends: Sequence[float] | None) -> list[list[float]] | None:
    """Return the lengths of both error bars; a value outside its own interval has no bar on that side."""
    return None if ends is None else [[max(value - ends[0], 0.0)], [max(ends[1] - value, 0.0)]]
