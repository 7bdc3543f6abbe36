"""Accept length against temperature, where a run has several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmspec.evaluate.report.style import GRID, Look, keep, legend, panels


def lines(rows: Sequence[dict], said: Mapping[str, str]) -> dict[str, dict[str, list[tuple[float, float]]]]:
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


def draw(rows: Sequence[dict], said: Mapping[str, str], look: Mapping[str, Look], stem: Path) -> list[Path]:
    """A panel per model; none where no method was run at two temperatures."""
    found = lines(rows, said)
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
