"""The style of a report's plots: for print, for colour-blind readers, and with the same marks per method in all plots."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.io.files import replacing

# Okabe and Ito's colours, distinct in every kind of colour blindness; black is plain decoding's
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")
MARKS = "osD^vP<>Xh"
BLACK, GRID = "#000000", "#D9D9D9"
WIDE, TALL = 3.3, 2.45  # inches of a panel; two fit a page of text
LINE = 0.165  # inches of a line of a legend
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
    "text.parse_math": False,  # names of methods are not formulas
}
FORMATS = ("png", "svg")


def need_matplotlib() -> Any:
    """Return matplotlib's pyplot without a window.

    Raises:
        ValueError: Matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError('--plot: expected matplotlib, got none, pip install "mmspec[eval]"') from error
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


@dataclass(frozen=True, slots=True)
class Look:
    """The style of a method in plots.

    Attributes:
        colour: The colour of its decoding.
        mark: The mark of its decoding under its rule.
        filled: The method is exact.
    """

    colour: str
    mark: str
    filled: bool

    @property
    def dashes(self) -> Any:
        """The style of a line."""
        return "-" if self.filled else (0, (4, 1.5))

    def marks(self, size: float = 5.5) -> dict[str, Any]:
        """Return the arguments of a marker."""
        face = self.colour if self.filled else "white"
        return {"marker": self.mark, "ms": size, "mfc": face, "mec": self.colour, "mew": 1.1, "color": self.colour}


def looks(rows: Sequence[dict]) -> dict[str, Look]:
    """Return the style of every method.

    Each decoding has a colour, and methods of the same colour have different marks, filled for exact methods and hollow
    for relaxed methods. Plain decoding is a black star.
    """
    styles: dict[str, Look] = {}
    colours: dict[str, str] = {}
    used: dict[str, int] = {}
    for row in rows:
        if row["method"] in styles or row["exact"] is None:
            continue
        if row["plain"]:
            styles[row["method"]] = Look(BLACK, "*", True)
            continue
        family = row["decoding"].partition(":")[0].rpartition("-")[0] or row["decoding"].partition(":")[0]
        colour = colours.setdefault(family, COLOURS[len(colours) % len(COLOURS)])
        mark = MARKS[used.get(family, 0) % len(MARKS)]
        used[family] = used.get(family, 0) + 1
        styles[row["method"]] = Look(colour, mark, bool(row["exact"]))
    return styles


@contextmanager
def figure_of(across: int, down: int, wide: float = WIDE, tall: float = TALL) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes [down, across] in the style of print; the figure is closed after the block."""
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
    contents: Mapping[str, Any], stem: Path, paint: Callable[[Any, Any], Mapping[str, Any]], across: int = 2,
    title_of: Callable[[str], str] = str, **size: float,
) -> list[Path]:  # fmt: skip
    """Draw a panel per entry and a legend of all below them.

    Args:
        contents: The contents of the panels, by name.
        stem: The files, without their endings.
        paint: A function that draws a content on axes and returns the handles of its legend, by name.
        across: The most panels of a line.
        title_of: A function that returns the title of a panel from its name.
        size: See `figure_of`.

    Returns:
        The files; none without contents.
    """
    if not contents:
        return []
    across, handles = min(across, len(contents)), {}
    with figure_of(across, -(-len(contents) // across), **size) as (figure, axes):
        for axis, (name, one) in zip(axes.flat, contents.items(), strict=False):
            handles |= paint(axis, one)
            axis.set_title(title_of(name), loc="left")
        for axis in axes.flat[len(contents) :]:
            axis.set_axis_off()
        legend(figure, list(handles.values()), list(handles))
        return keep(figure, stem)


def keep(figure: Any, stem: Path, kinds: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure as STEM.png and STEM.svg, or in the formats of `kinds`, and return the files."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    for file, kind in zip(files, kinds, strict=True):
        write_figure(figure, file, kind)
    return files


def write_figure(figure: Any, file: Path, kind: str = "png") -> None:
    """Write a figure; without a date, equal figures give equal bytes."""
    drawn = io.BytesIO()
    metadata = {"Software": None} if kind == "png" else {"Date": None}
    figure.savefig(drawn, format=kind, bbox_inches="tight", pad_inches=0.03, metadata=metadata)
    with replacing(file) as temporary:
        temporary.write_bytes(drawn.getvalue())


def legend(figure: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Add a legend below all panels; the figure grows by its lines, so that panels keep their height."""
    columns = next((count for count in range(len(names), 1, -1) if _width(names, count) <= figure.get_figwidth()), 1)
    lines = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + LINE * lines)
    figure.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, handletextpad=0.4, columnspacing=1.4
    )


def _width(names: Sequence[str], columns: int) -> float:
    """Return the inches of a legend, whose columns are each as wide as their longest name."""
    return sum(0.058 * max(map(len, part)) + 0.42 for part in np.array_split(np.array(names, dtype=object), columns))
