"""Runs of `mmspec evaluate` in a folder, with the plots and tables of their reports as HTML."""

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
    """Return the names of the runs in a folder; "." is the folder itself. A missing folder has none."""
    from mmspec.evaluate.engine.shards import FOLDER

    if not folder.is_dir():
        return []
    below = [path for path in sorted(folder.iterdir()) if not path.is_symlink()]
    inside = [path.name for path in below if any((path / FOLDER).glob("*.jsonl"))]
    return [*(["."] if any((folder / FOLDER).glob("*.jsonl")) else []), *inside]


def rows_of_run(folder: Path, name: Any, limits: Limits) -> tuple[list[dict], list[str]]:
    """Return the rows of a run by its name in `known_runs`, and the cautions about them. An unknown name, and a run
    that is damaged, empty or too large, is a RefusedRequest."""
    from mmspec.evaluate.base.media import inside
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
        run_data = read_run(run)
        table = rows(run_data) if run_data.samples else []
        notes = [*cautions(run_data), *failures(run_data)] if run_data.samples else []
    except (ValueError, OSError) as error:
        raise RefusedRequest(" ".join(str(error).replace(str(run), name).split())) from None
    if not table:
        raise RefusedRequest(f"run: expected samples in {name}, got none yet, let `mmspec evaluate` finish some")
    if len(table) > limits.rows:
        raise RefusedRequest(
            f"run: expected at most {limits.rows:,} rows, got {len(table):,}, use `mmspec report` on it"
        )
    return table, notes


LOOK = "Look at the points up and to the right of the star: faster than plain decoding, with no loss of quality."
KEY = (
    '<span><i class="mm-dot accepted"></i>filled: exact</span><span><i class="mm-dot hollow"></i>hollow: relaxed</span>'
    "<span>star: plain decoding</span><span>line: the methods that no other method beats in both</span>"
)


def plots(rows: Sequence[dict]) -> str:
    """Return the plot of each table of the report as HTML, with the table below it."""
    parts = by_table(rows)
    shown = [f"<h3>{escape(grid.title)}</h3>{_plot(parts[grid.title])}{_table(grid)}" for grid in grids(rows)]
    return f'<p class="mm-legend">{KEY}</p>{"".join(shown)}'


def _plot(rows: Sequence[dict]) -> str:
    """Return the plot of a table as an embedded image; "" if no method has both a speed and a quality."""
    with TemporaryDirectory(prefix="mmspec-plot-") as folder:
        files = draw(rows, Path(folder) / "plot", ("svg",))
        images = [base64.b64encode(read_text(file).encode()).decode("ascii") for file in files]
    text = f"quality against speed of {len(rows)} methods; the table below has the figures"
    plots = "".join(f'<img class="mm-plot" alt="{text}" src="data:image/svg+xml;base64,{data}">' for data in images)
    return plots and f'{plots}<p class="mm-caption">{LOOK}</p>'


def _table(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in grid.heads)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in grid.lines)
    table = f'<table class="mm-table"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="mm-scroll" tabindex="0">{table}</div>'
