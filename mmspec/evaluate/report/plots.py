"""Curves as PNG files, drawn with matplotlib from the `eval` extra, and curves of training logs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmspec.evaluate.report.style import GRID, TALL, WIDE, figure_of, legend, write_figure
from mmspec.io.readers import read_text

Line = tuple[Sequence[float], Sequence[float]]
MARKERS = "s^Dv*PX<>h"
ACCEPT_LENGTH, SPEEDUP = "accept length (tokens a target pass)", "times plain decoding"  # labels of axes


@dataclass(frozen=True, slots=True)
class Panel:
    """A pair of axes.

    Attributes:
        title: The title.
        x: The label of the x axis.
        y: The label of the y axis.
        lines: (xs, ys) by legend.
        clouds: Unconnected points (xs, ys) by legend.
        notes: (x, y, text) beside points.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    clouds: Mapping[str, Line] = field(default_factory=dict)
    notes: Sequence[tuple[float, float, str]] = ()


def plot_of(suites: Mapping[str, Any], result: dict) -> Any:
    """Return the `plot` of a bench file's suite.

    Raises:
        ValueError: The suite has no plot.
    """
    name = result["env"]["suite"]
    if not suites[name].plot:
        raise ValueError(f"--plot: expected a suite with a curve, got {name!r}, leave --plot out")
    return suites[name].plot


def grouped(rows: Sequence[dict], key: Callable[[dict], Any], *needed: str) -> dict[Any, list[dict]]:
    """Return the rows that have all needed figures, by key, in the order of first appearance."""
    groups: dict[Any, list[dict]] = {}
    for row in rows:
        if all(row.get(name) is not None for name in needed):
            groups.setdefault(key(row), []).append(row)
    return groups


def lines_of(rows: Sequence[dict], name_of: Callable[[dict], str | None], x: str, y: str) -> dict[str, Line]:
    """Return a line per name, by increasing x; rows without a figure or a name are left out."""
    points = {name: [(row[x], row[y]) for row in part] for name, part in grouped(rows, name_of, x, y).items()}
    return {name: tuple(zip(*sorted(pairs), strict=True)) for name, pairs in points.items() if name is not None}


def draw(panels: Sequence[Panel], file: Path) -> None:
    """Draw panels as a PNG; panels of one title share a row, and every line has the same color in all panels.

    Raises:
        ValueError: No panel has a line.
    """
    if not any(panel.lines for panel in panels):
        raise ValueError("--plot: expected rows with figures to draw, got none, run more methods")
    across, down = layout(panels)
    scale = 1.2 if across > 2 else 1.6
    names = list(dict.fromkeys(name for panel in panels for name in (*panel.lines, *panel.clouds)))
    with figure_of(across, down, scale * WIDE, scale * TALL) as (figure, axes):
        colors, handles = _colors(len(names)), {}
        looks = {name: (colors[i], MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)}
        for axis, panel in zip(axes.flat, panels, strict=False):
            handles |= _draw_panel(axis, panel, looks)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        legend(figure, [handles[name] for name in names], names)
        write_figure(figure, file)


def layout(panels: Sequence[Panel]) -> tuple[int, int]:
    """Return the columns and rows of a figure: about four panels per row, with panels of one title in the same row."""
    together = max(sum(one.title == panel.title for one in panels) for panel in panels)
    across = min(len(panels), together * (4 // together or 1) if together > 1 else 3)
    return across, -(-len(panels) // across)


def _draw_panel(axis: Any, panel: Panel, looks: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    """Draw a panel and return the handles of its legend."""
    handles = {}
    for name, (xs, ys) in panel.lines.items():
        color, marker = looks[name]
        # a single point has its own marker
        marker, size = ("o", 3) if len(xs) > 1 else (marker, 7)
        (handles[name],) = axis.plot(xs, ys, marker=marker, markersize=size, color=color, label=name)
    for name, (xs, ys) in panel.clouds.items():
        color, marker = looks[name]
        (handles[name],) = axis.plot(xs, ys, linestyle="none", marker=marker, markersize=6, color=color, label=name)
    for x, y, text in panel.notes:
        # below its point and rotated, so that neighbours at the same height do not overlap
        axis.annotate(text, (x, y), (-2, -6), textcoords="offset points", rotation=55, fontsize=6, ha="right", va="center",
                      rotation_mode="anchor")  # fmt: skip
    # from zero, with space above the highest line
    top = max((max(ys) for _, ys in (*panel.lines.values(), *panel.clouds.values())), default=1)
    axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, ylim=(0, 1.06 * top or 1))
    axis.grid(color=GRID, lw=0.4)
    return handles


def _colors(count: int) -> list[Any]:
    """Return `count` different colors: the usual ten, their ten lighter tones, then steps around the wheel."""
    from matplotlib import colormaps
    from matplotlib.colors import hsv_to_rgb

    if count <= 20:
        pairs = colormaps["tab20"].colors
        return [*pairs[::2], *pairs[1::2]][:count]
    return [tuple(hsv_to_rgb((i / count, 1 if i % 2 else 0.55, (0.6, 0.95, 0.8)[i % 3]))) for i in range(count)]


def training_curve(file: Path, y: str = "accept_length") -> Line:
    """Return (steps, values) of the lines of a training log that hold `y`.

    Raises:
        ValueError: The file has no such line.
    """
    pairs = []
    for number, line in enumerate(read_text(file).splitlines(), 1):
        try:
            record = json.loads(line)
            if y in record:
                pairs.append((int(record["step"]), float(record[y])))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: expected a JSON object with a step, got {line[:60]!r}") from error
    if not pairs:
        raise ValueError(f"{file}: expected lines with {y!r}, got none; train with held-out requests")
    steps, values = zip(*pairs, strict=True)
    return steps, values


def training_panels(logs: Mapping[str, Path]) -> list[Panel]:
    """Return accept length against training steps, a line per log."""
    lines = {name: training_curve(file) for name, file in logs.items()}
    return [Panel("accept length on held-out requests while training", "training steps", ACCEPT_LENGTH, lines)]
