"""Runs of `mmspec evaluate` in one folder, with the plots and the tables of their reports as HTML."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmspec.evaluate.report.page import Grid
from mmspec.evaluate.report.pareto import draw
from mmspec.evaluate.report.tables import by_table, grids
from mmspec.io.readers import read_text
from mmspec.web.limits import Limits, RefusedRequest

ABSENT = "run: expected one of the runs in the server's folder, got another name, pick one of the list"
LARGEST = 200_000_000  # bytes of all shards


def known_runs(folder: Path) -> list[str]:
    """Names of the runs below a folder, that of the folder itself being "."; none where there is no folder."""
    from mmspec.evaluate.engine.shards import FOLDER

    if not folder.is_dir():
        return []
    below = [path for path in sorted(folder.iterdir()) if not path.is_symlink()]
    inside = [path.name for path in below if any((path / FOLDER).glob("*.jsonl"))]
    return [*(["."] if any((folder / FOLDER).glob("*.jsonl")) else []), *inside]


def rows_of_run(folder: Path, name: Any, limits: Limits) -> tuple[list[dict], list[str]]:
    """Rows of a run, and what a reader must know of them.

    Raises RefusedRequest for what is no name of `known_runs`, and for runs too large to read here.
    """
    from mmspec.evaluate.engine.media import inside
    from mmspec.evaluate.engine.shards import FOLDER, read_run
    from mmspec.evaluate.report.cautions import cautions, failures
    from mmspec.evaluate.report.rows import rows

    if not isinstance(name, str) or name not in known_runs(folder):
        raise RefusedRequest(ABSENT)
    try:
        run = inside(folder, name)
    except ValueError:
        raise RefusedRequest(ABSENT) from None
    size = sum(file.stat().st_size for file in (run / FOLDER).glob("*.jsonl"))
    if size > LARGEST:
        raise RefusedRequest(
            f"run: expected shards of at most {LARGEST:,} bytes, got {size:,}, use `mmspec report` on it"
        )
    try:
        found = read_run(run)
        made = rows(found) if found.samples else []
        notes = [*cautions(found), *failures(found)] if found.samples else []
    except (ValueError, OSError) as error:
        raise RefusedRequest(" ".join(str(error).replace(str(run), name).split())) from None
    if not made:
        raise RefusedRequest(f"run: expected samples in {name}, got none yet, let `mmspec evaluate` finish some")
    if len(made) > limits.rows:
        raise RefusedRequest(
            f"run: expected at most {limits.rows:,} rows, got {len(made):,}, use `mmspec report` on it"
        )
    return made, notes


KEY = (
    '<span><i class="mm-dot accepted"></i>filled: exact</span><span><i class="mm-dot hollow"></i>hollow: relaxed</span>'
    "<span>star: plain decoding</span><span>line: what nothing beats in both</span>"
)


def plots(rows: Sequence[dict]) -> str:
    """Return the report's plot of each table as HTML, and the table of the same figures below it.

    Args:
        rows: The rows of a run.

    Raises:
        ValueError: matplotlib is not installed.
    """
    parts = by_table(rows)
    shown = [f"<h3>{escape(grid.title)}</h3>{_plot(parts[grid.title])}{_table(grid)}" for grid in grids(rows)]
    return f'<p class="mm-legend">{KEY}</p>{"".join(shown)}'


def _plot(rows: Sequence[dict]) -> str:
    """The plot of a table as an image that holds itself; nothing where no method has both speed and quality."""
    with TemporaryDirectory(prefix="mmspec-plot-") as folder:
        files = draw(rows, Path(folder) / "plot", ("svg",))
        held = [base64.b64encode(read_text(file).encode()).decode("ascii") for file in files]
    text = f"quality against speed of {len(rows)} methods; the table below has the figures"
    return "".join(f'<img class="mm-plot" alt="{text}" src="data:image/svg+xml;base64,{one}">' for one in held)


def _table(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in grid.heads)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in grid.lines)
    table = f'<table class="mm-table"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="mm-scroll" tabindex="0">{table}</div>'
