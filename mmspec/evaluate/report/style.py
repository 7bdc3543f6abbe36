"""The style of a report's plots: for print, for colour-blind readers, and with the same marks per method in all plots."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.evaluate.report.palette import Look, looks_of
from mmspec.io.files import replacing

WIDE, TALL = 4.0, 3.3  # inches of a panel; two abreast are 8 inches, where text is 11 points
LINE = 0.22  # of a legend
PRINT = {
    "font.size": 11,
    "axes.titlesize": 11.5,
    "axes.labelsize": 11,
    "legend.fontsize": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.axisbelow": True,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "mmspec",
    "text.parse_math": False,  # names of methods are not formulas
}
FORMATS = ("png", "svg")


def need_matplotlib() -> Any:
    """Return matplotlib's pyplot without a window."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError('--plot: expected matplotlib, got none, pip install "mmspec[eval]"') from error
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def looks(rows: Sequence[dict]) -> dict[str, Look]:
    """Return the looks of the methods of a report's rows: filled for exact methods and hollow for relaxed methods."""
    return looks_of((row["method"], bool(row["exact"])) for row in rows if row["exact"] is not None)


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
    contents: Mapping[str, Any],
    stem: Path,
    paint: Callable[[Any, Any], Mapping[str, Any]],
    across: int = 2,
    kinds: Sequence[str] = FORMATS,
    **size: float,
) -> list[Path]:
    """Draw a panel per entry, at most `across` a line, and a legend of all below them, into files STEM.KIND. `paint`
    draws a content on axes and returns the handles of its legend, by name. `size` is that of `figure_of`."""
    if not contents:
        return []
    across, handles = min(across, len(contents)), {}
    with figure_of(across, -(-len(contents) // across), **size) as (figure, axes):
        for axis, (name, one) in zip(axes.flat, contents.items(), strict=False):
            handles |= paint(axis, one)
            axis.set_title(name, loc="left")
        for axis in axes.flat[len(contents) :]:
            axis.set_axis_off()
        legend(figure, list(handles.values()), list(handles))
        return keep(figure, stem, kinds)


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
    """Return the inches of a legend, whose columns are filled one after another and are each as wide as their longest
    name."""
    return sum(0.085 * max(map(len, part)) + 0.5 for part in np.array_split(np.array(names, dtype=object), columns))
