"""How the plots of a report look: for print, for the colour-blind, and the same marks for the same method in all of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.io.files import replacing

# Okabe and Ito's colours, which remain apart in every kind of colour blindness; black is plain decoding's
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")
MARKS = "osD^vP<>Xh"
BLACK, GRID = "#000000", "#D9D9D9"
WIDE, TALL = 3.3, 2.45  # inches of a panel; two fit a page of text
LINE = 0.165  # of a legend
PRINT = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.axisbelow": True,
    "savefig.dpi": 220,
    "svg.fonttype": "none",
    "svg.hashsalt": "mmspec",
    "text.parse_math": False,  # names of methods are no formulas
}
FORMATS = ("png", "svg")


def need_matplotlib() -> Any:
    """matplotlib's pyplot without a window.   Raises ValueError where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError('--plot: expected matplotlib, got none, pip install "mmspec[eval]"') from error
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


@dataclass(frozen=True, slots=True)
class Look:
    """colour: of a decoding.   mark: of a decoding under one rule.   filled: exact."""

    colour: str
    mark: str
    filled: bool

    @property
    def dashes(self) -> Any:
        """The style of a line."""
        return "-" if self.filled else (0, (4, 1.5))

    def marks(self, size: float = 5.5) -> dict[str, Any]:
        """Arguments of a marker."""
        face = self.colour if self.filled else "white"
        return {"marker": self.mark, "ms": size, "mfc": face, "mec": self.colour, "mew": 1.1, "color": self.colour}


def looks(rows: Sequence[dict]) -> dict[str, Look]:
    """By method: a colour for every decoding, marks in turn within one colour, filled for exact methods and hollow for relaxed
    ones; plain decoding is a black star."""
    found: dict[str, Look] = {}
    colours: dict[str, str] = {}
    used: dict[str, int] = {}
    for row in rows:
        if row["method"] in found or row["exact"] is None:
            continue
        if row["plain"]:
            found[row["method"]] = Look(BLACK, "*", True)
            continue
        family = row["decoding"].partition(":")[0].rpartition("-")[0] or row["decoding"].partition(":")[0]
        colour = colours.setdefault(family, COLOURS[len(colours) % len(COLOURS)])
        mark = MARKS[used.get(family, 0) % len(MARKS)]
        used[family] = used.get(family, 0) + 1
        found[row["method"]] = Look(colour, mark, bool(row["exact"]))
    return found


@contextmanager
def figure_of(across: int, down: int, wide: float = WIDE, tall: float = TALL) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes [down, across], in the style of print; closed behind the block."""
    plt = need_matplotlib()
    with plt.rc_context(PRINT):
        figure, axes = plt.subplots(
            down, across, figsize=(wide * across, tall * down), squeeze=False, layout="constrained"
        )
        try:
            yield figure, axes
        finally:
            plt.close(figure)


def draw_grid(
    found: Mapping[str, Any], stem: Path, paint: Callable[[Any, Any], Mapping[str, Any]], across: int = 2,
    title_of: Callable[[str], str] = str, **size: float,
) -> list[Path]:  # fmt: skip
    """Draw a panel per entry and a legend of all below them.

    Args:
        found: The contents of the panels, by name.
        stem: The files, without their endings.
        paint: Draws a content on axes and returns the handles of its legend, by name.
        across: The panels of a line, at most.
        title_of: The title of a panel from its name.
        size: See `panels`.

    Returns:
        The files; none of nothing.
    """
    if not found:
        return []
    across, handles = min(across, len(found)), {}
    with figure_of(across, -(-len(found) // across), **size) as (figure, axes):
        for axis, (name, one) in zip(axes.flat, found.items(), strict=False):
            handles |= paint(axis, one)
            axis.set_title(title_of(name), loc="left")
        for axis in axes.flat[len(found) :]:
            axis.set_axis_off()
        legend(figure, list(handles.values()), list(handles))
        return keep(figure, stem)


def keep(figure: Any, stem: Path, kinds: Sequence[str] = FORMATS) -> list[Path]:
    """Writes a figure as STEM.png and STEM.svg, or in the formats of `kinds`; the files."""
    made = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    for file, kind in zip(made, kinds, strict=True):
        write_figure(figure, file, kind)
    return made


def write_figure(figure: Any, file: Path, kind: str = "png") -> None:
    """Writes a figure; without a date the same figures give the same bytes."""
    drawn = io.BytesIO()
    told = {"Software": None} if kind == "png" else {"Date": None}
    figure.savefig(drawn, format=kind, bbox_inches="tight", pad_inches=0.03, metadata=told)
    with replacing(file) as temporary:
        temporary.write_bytes(drawn.getvalue())


def legend(figure: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Below all panels, in as many columns as fit; the figure grows by its lines, so that panels keep their height."""
    columns = next((count for count in range(len(names), 1, -1) if _width(names, count) <= figure.get_figwidth()), 1)
    lines = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + LINE * lines)
    figure.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, handletextpad=0.4, columnspacing=1.4
    )


def _width(names: Sequence[str], columns: int) -> float:
    """Inches of a legend, whose columns are filled one after another and are each as wide as their longest name."""
    return sum(0.058 * max(map(len, part)) + 0.42 for part in np.array_split(np.array(names, dtype=object), columns))
