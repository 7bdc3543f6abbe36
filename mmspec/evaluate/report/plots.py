"""Curves as PNG files, drawn with matplotlib from the `eval` extra, and curves of training logs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.evaluate.report.labels import Label, place, short_names
from mmspec.evaluate.report.palette import BLACK, GREY, GRID, Look, is_plain, kind, known, looks_of
from mmspec.evaluate.report.style import TALL, WIDE, figure_of, write_figure
from mmspec.io.readers import read_text

Line = tuple[Sequence[float], Sequence[float]]
ACCEPT_LENGTH, SPEEDUP = "tokens per target pass (more →)", "times plain decoding (faster →)"  # labels of axes
LABELLED, NOTES = 8, 2  # names in a panel, and how many of them are notes
LEVELS = ("as measured", "plain's own split halves", "plain")  # lines to compare with, which are no methods


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str  # panels of one title stand side by side
    x: str  # label of the axis, as is `y`
    y: str
    lines: Mapping[str, Line]  # points (xs, ys) by name: several are joined, and a level line of two is drawn dashed
    clouds: Mapping[str, Line] = field(default_factory=dict)  # the same, not joined
    notes: Sequence[tuple[float, float, str]] = ()  # names (x, y, text) beside points
    # areas (xs, lows, highs) by name
    bands: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]] = field(default_factory=dict)
    better: str = ""  # "higher" or "lower" where both axes compare methods: those that no other beats are named first


def plot_of(suites: Mapping[str, Any], result: dict) -> Any:
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
    """Write panels as a PNG, at most two abreast, and those of one title side by side. A method has one colour and mark
    in all panels, and its name stands beside its line. Where a panel has more names than fit, the less known methods
    are grey and have no name."""
    if not any(panel.lines or panel.clouds for panel in panels):
        raise ValueError("--plot: expected rows with figures to draw, got none, run more methods")
    across, down = layout(panels)
    names = dict.fromkeys(name for panel in panels for name in (*panel.lines, *panel.clouds))
    looks = looks_of((name, True) for name in names)
    wide = WIDE if across > 1 else 2 * WIDE
    with figure_of(across, down, wide, TALL if across > 1 else 1.35 * TALL) as (figure, axes):
        chosen = [_labelled(panel) for panel in panels]
        for axis, panel, shown in zip(axes.flat, panels, chosen, strict=False):
            _draw_panel(axis, panel, looks, shown)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        figure.canvas.draw()
        for axis, panel, shown in zip(axes.flat, panels, chosen, strict=False):
            place(axis, _labels(panel, looks, shown), _marks(panel))
        write_figure(figure, file)


def layout(panels: Sequence[Panel]) -> tuple[int, int]:
    """Return the columns and rows of a figure whose panels stand in the order given; a title is not in two rows."""
    together = max(sum(other.title == panel.title for other in panels) for panel in panels)
    across = min(len(panels), max(together, 2))
    return across, -(-len(panels) // across)


def _is_reference(name: str, ys: Sequence[float]) -> bool:
    """Return whether a line is only there to compare with: a level, or a perfect prediction."""
    return len(ys) == 2 and (ys[0] == ys[1] or name in LEVELS)


def _labelled(panel: Panel) -> list[str]:
    """Return the names that a panel shows: plain decoding, methods that no other beats, then the best known of each
    kind."""
    drawn = {**panel.lines, **panel.clouds}
    references = [name for name, (_, ys) in drawn.items() if _is_reference(name, ys) and ", goodput" not in name]
    names = [name for name in drawn if name not in references]
    best = _unbeaten({name: drawn[name] for name in names}, panel.better) if panel.better else ()
    first = {kind(name): name for name in reversed(names)}

    def order(name: str) -> tuple:
        return not is_plain(name), name not in best, first[kind(name)] != name, kind(name)

    if len(names) > LABELLED:
        names.sort(key=order)
    return [*references, *names[: LABELLED - min(len(panel.notes), NOTES)]]


def _unbeaten(drawn: Mapping[str, Line], better: str) -> set[str]:
    """Return the names with a point that no other point is better than in both coordinates."""
    points = {(x, y, name) for name, line in drawn.items() for x, y in zip(*line, strict=True)}
    sign = 1 if better == "higher" else -1
    return {
        name
        for x, y, name in points
        if not any(u >= x and sign * v >= sign * y and (u, v) != (x, y) for u, v, _ in points)
    }


def _draw_panel(axis: Any, panel: Panel, looks: Mapping[str, Look], shown: Sequence[str]) -> None:
    for xs, lows, highs in panel.bands.values():
        axis.fill_between(xs, lows, highs, color=GRID, alpha=0.6, lw=0)
    for name, (xs, ys) in panel.lines.items():
        look = looks[name] if name in shown else Look(GREY, "o")
        if _is_reference(name, ys):
            axis.plot(xs, ys, color=BLACK if known(name) is None else look.colour, ls=(0, (4, 2)), lw=1.2, label=name)
        else:
            size = 12 if is_plain(name) else 5 if len(xs) > 1 else 8 if name in shown else 4
            axis.plot(xs, ys, **look.marks(size), label=name)
    for name, (xs, ys) in panel.clouds.items():
        style = looks[name].marks(7) if name in shown else {"marker": "o", "ms": 4, "color": GREY}
        axis.plot(xs, ys, ls="none", **style, label=name)
    values = [panel.lines, panel.clouds]
    top = max((max(ys) for group in values for _, ys in group.values()), default=1)
    axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    if panel.clouds and not panel.bands:
        axis.margins(y=0.2)
    else:
        axis.set_ylim(0, 1.12 * top or 1)
    if all(float(x).is_integer() for group in values for xs, _ in group.values() for x in xs):
        axis.xaxis.get_major_locator().set_params(integer=True)
    # labels stand to the right of the last points
    axis.margins(x=0.05)
    left, right = axis.get_xlim()
    axis.set_xlim(left, right + 0.22 * (right - left))
    axis.grid(color=GRID, lw=0.4)


def _labels(panel: Panel, looks: Mapping[str, Look], shown: Sequence[str]) -> list[Label]:
    """Return the labels of a panel: names in the colour of their lines, then notes in black."""
    short, labels = short_names(shown), []
    for name in shown:
        xs, ys = (panel.lines | panel.clouds)[name]
        level = _is_reference(name, ys)
        colour = BLACK if level and known(name) is None else looks[name].colour
        points = list(zip(xs, ys, strict=True))[::-1]
        if level:
            points = [(xs[0] + part * (xs[1] - xs[0]), ys[0] + part * (ys[1] - ys[0])) for part in (1, 0.75, 0.5, 0.25)]
        if name in panel.clouds:  # points at the top have more room
            points.sort(key=lambda point: -point[1])
        base, goodput, _ = name.partition(", goodput")
        labels.append(Label("goodput" if goodput and base in shown else short[name], colour, points))
    for name, (xs, lows, _) in panel.bands.items():
        labels.append(Label(name, GREY, list(zip(xs, lows, strict=True))[::-1]))
    notes = [note for note in panel.notes if not note[2].startswith(tuple(shown))]
    chosen = [notes[round(place)] for place in np.linspace(0, len(notes) - 1, min(NOTES, len(notes)))]
    return [*labels, *(Label(text, BLACK, [(x, y)]) for x, y, text in chosen)]


def points_along(line: Line) -> list[tuple[float, float]]:
    """Return points along a line, close enough together for labels to keep off it."""
    xs, ys = line
    steps = np.linspace(0, len(xs) - 1, 12 * len(xs) - 11)
    return list(zip(np.interp(steps, range(len(xs)), xs), np.interp(steps, range(len(ys)), ys), strict=True))


def _marks(panel: Panel) -> list[tuple[float, float]]:
    """Return points that labels should not hide."""
    clouds = [point for xs, ys in panel.clouds.values() for point in zip(xs, ys, strict=True)]
    return [point for line in panel.lines.values() for point in points_along(line)] + clouds * 3


def training_curve(file: Path, y: str = "accept_length") -> Line:
    """Return (steps, values) of the lines of a training log that hold `y`."""
    pairs = []
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if not line.strip():
            continue
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
    return [Panel("held-out requests, while training", "training steps", ACCEPT_LENGTH, lines)]
