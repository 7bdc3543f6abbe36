"""Labels beside points and lines, in free places of a panel; and names short enough to stand there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np

_ANGLES = np.deg2rad((0, 180, 90, 270, 35, -35, 145, 215, 65, -65, 115, 245))
_DISTANCES = (9, 20, 34, 52, 74, 100)  # points from a mark to the edge of its label
WRAP = 30  # letters of a line of a label
_LEADER = 16  # from this distance on a thin line joins both


@dataclass(frozen=True, slots=True)
class Label:
    """A name beside a mark or a line."""

    text: str
    colour: str
    anchors: Sequence[tuple[float, float]]  # points (x, y) that the label may stand beside, the best first


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return names without their settings in brackets, except those that tell two methods apart."""
    stems = {name: re.sub(r"\s*\([^()]*\)", "", name) for name in names}
    short = {}
    for name, stem in stems.items():
        group = [other for other in names if stems[other] == stem]
        settings = [_settings(other) for other in group]
        own = [part for part in _settings(name) if len(group) > 1 and not all(part in other for other in settings)]
        short[name] = ", ".join([stem, *own])
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def _settings(name: str) -> list[str]:
    return [part.strip() for inside in re.findall(r"\(([^()]*)\)", name) for part in inside.split(",")]


def place(axis: Any, labels: Sequence[Label], marks: Sequence[tuple[float, float]] = ()) -> None:
    """Write labels, the most important first, into axes with their final size and limits. Each stands in the place
    nearest to its mark that hides least; `marks` (x, y) should stay visible."""
    figure = axis.figure
    renderer = figure.canvas.get_renderer()
    scale = figure.dpi / 72
    frame = axis.get_window_extent(renderer)
    hidden = axis.transData.transform(np.array(marks, dtype=float).reshape(-1, 2))
    occupied: list[tuple[float, float, float, float]] = []
    for label in labels:
        text = fill(label.text, WRAP)
        sample = axis.text(0, 0, text)
        extent = sample.get_window_extent(renderer)
        sample.remove()
        half = np.array([extent.width, extent.height]) / 2
        best = (np.inf, None, None, 0.0)
        for rank, anchor in enumerate(label.anchors):
            start = axis.transData.transform(anchor)
            for distance in _DISTANCES:
                for turn, angle in enumerate(_ANGLES):
                    way = np.array([np.cos(angle), np.sin(angle)])
                    centre = start + way * (half + distance * scale)
                    cost = distance / 6 + turn / 10 + rank / 2 + _cost(centre, half, frame, hidden, occupied)
                    if cost < best[0]:
                        best = (cost, anchor, centre - start, distance)
        _, anchor, shift, distance = best
        centre = axis.transData.transform(anchor) + shift
        occupied.append((*(centre - half), *(centre + half)))
        line = {"arrowstyle": "-", "color": label.colour, "lw": 1, "ls": ":", "shrinkA": 0, "shrinkB": 4}
        note = axis.annotate(
            text,
            anchor,
            shift / scale,
            textcoords="offset points",
            ha="center",
            va="center",
            color=label.colour,
            annotation_clip=False,
            zorder=6,
            arrowprops=line if distance > _LEADER else None,
            bbox={"boxstyle": "square,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.75},
        )
        note.set_in_layout(False)


def _cost(centre: np.ndarray, half: np.ndarray, frame: Any, hidden: np.ndarray, occupied: Sequence[tuple]) -> float:
    """Return the cost of a place: hidden labels and marks, and the part of the label outside its panel."""
    left, low = centre - half
    right, high = centre + half
    outside = max(frame.x0 - left, 0) + max(right - frame.x1, 0) + max(frame.y0 - low, 0) + max(high - frame.y1, 0)
    area = sum(max(min(right, r) - max(left, x), 0) * max(min(high, t) - max(low, y), 0) for x, y, r, t in occupied)
    inside = (np.abs(hidden - centre) < half + 2).all(axis=1).sum() if len(hidden) else 0
    return outside * 2 + area / 10 + inside * 6
