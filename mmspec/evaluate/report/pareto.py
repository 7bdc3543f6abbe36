"""Quality against speed: every cell with its intervals, and the front of cells that no other beats in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mmspec.evaluate.report.measures import MEASURES, PLOTTED
from mmspec.evaluate.report.style import BLACK, FORMATS, GRID, Look, draw_grid, figure_of, keep, legend, looks
from mmspec.evaluate.report.tables import by_table

MOST = 3  # measures side by side
SPEED = "times plain decoding, end to end"


def plotted_measures(rows: Sequence[dict]) -> list[str]:
    """Return the measures that plots show, best known first."""
    return [name for name in PLOTTED if any(row.get(name) is not None for row in rows)][:MOST]


def drawable(rows: Sequence[dict]) -> list[dict]:
    """Return the rows with a speed and a measure of quality."""
    return [
        row for row in rows if row["speedup_vs_ar"] is not None and any(row.get(one) is not None for one in PLOTTED)
    ]


def front(points: Sequence[tuple[float, float]], better: str) -> list[tuple[float, float]]:
    """Return the Pareto front of points (speed, quality), ordered by speed.

    A point is left out if another point is at least as good in both coordinates and better in either.
    """
    sign = 1 if better == "higher" else -1
    best: list[tuple[float, float]] = []
    for point in sorted(set(points), key=lambda one: (-one[0], -sign * one[1])):
        if not best or sign * point[1] > sign * best[-1][1]:
            best.append(point)
    return best[::-1]


def draw(rows: Sequence[dict], stem: Path, kinds: Sequence[str] = FORMATS) -> list[Path]:
    """Draw a row of panels per table, a panel per measure.

    Args:
        rows: The rows of the tables.
        stem: The files, without their endings.
        kinds: The formats of the files.

    Returns:
        The files; none where no row has both speed and quality.
    """
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
        wanted = [one for title in tables for one in _filled_line([it for it in wanted if it[0] == title], across)]
    with figure_of(across, -(-len(wanted) // across)) as (figure, axes):
        for axis, one in zip_longest(axes.flat, wanted):
            if one is None:
                axis.set_axis_off()
                continue
            title, name = one
            _panel(axis, tables[title], name, look)
            if across == 1 or name == plotted_measures(tables[title])[0]:
                axis.set_title(title, loc="left")
        shown = list(dict.fromkeys(row["method"] for part in tables.values() for row in part))
        legend(figure, _handles(shown, look), shown)
        return keep(figure, stem, kinds)


def _filled_line(wanted: list[tuple[str, str]], across: int) -> list[tuple[str, str] | None]:
    """Return the panels of a table, padded to a line of the figure."""
    return [*wanted, *[None] * (across - len(wanted))]


def overview(rows: Sequence[dict], stem: Path) -> list[Path]:
    """Draw a panel per table with its first measure: all kinds of output side by side."""
    kinds = {"plain decoding": Look(BLACK, "*", True), "exact": Look("#4D4D4D", "o", True),
             "relaxed": Look("#4D4D4D", "o", False)}  # fmt: skip

    def paint(axis: Any, part: list[dict]) -> dict[str, Any]:
        _panel(axis, part, plotted_measures(part)[0], looks(part))
        return dict(zip(kinds, _handles(list(kinds), kinds), strict=True))

    tables = {title: drawable(part) for title, part in by_table(rows).items()}
    return draw_grid({title: part for title, part in tables.items() if part}, stem, paint)


def _panel(axis: Any, rows: Sequence[dict], name: str, look: Mapping[str, Look]) -> None:
    points = [(row["speedup_vs_ar"], row[name]) for row in rows if row.get(name) is not None]
    steps = front(points, MEASURES[name].better)
    if len(steps) > 1:
        axis.step(*zip(*steps, strict=True), where="pre", color="#9E9E9E", lw=0.9, zorder=1)
    axis.axvline(1, color=GRID, lw=0.8, zorder=0)
    # plain decoding is drawn last, on top
    for row in sorted(rows, key=lambda one: one["plain"]):
        if row.get(name) is None:
            continue
        style = look[row["method"]]
        sides = {
            "xerr": _arms(row["speedup_vs_ar"], row["speedup_interval"]),
            "yerr": _arms(row[name], row[f"{name}_interval"]),
        }
        marks = style.marks(9.0 if row["plain"] else 5.5)
        arms = {"elinewidth": 0.8, "capsize": 1.6, "capthick": 0.8, "ecolor": (style.colour, 0.55)}
        above = 4 if row["plain"] else 3
        axis.errorbar(row["speedup_vs_ar"], row[name], **sides, **marks, **arms, ls="none", zorder=above)
    axis.set_xlabel(SPEED)
    arrow = "↑" if MEASURES[name].better == "higher" else "↓"
    axis.set_ylabel(f"{MEASURES[name].title} {arrow}")
    axis.grid(color=GRID, lw=0.4)
    axis.margins(0.09)


def _arms(value: float, ends: Sequence[float] | None) -> list[list[float]] | None:
    """Return the lengths of both error bars; a value outside its own interval has no bar on that side."""
    return None if ends is None else [[max(value - ends[0], 0.0)], [max(ends[1] - value, 0.0)]]


def _handles(names: Sequence[str], look: Mapping[str, Look]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], ls="none", **look[name].marks(8.0 if look[name].mark == "*" else 5.5)) for name in names]
