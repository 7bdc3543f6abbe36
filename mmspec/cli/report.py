"""`mmspec report`: tables and plots of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import check_writable, print_table, refusing, save_json, say

if TYPE_CHECKING:
    from mmspec.evaluate.engine.shards import Records


@command()
def report(run: Path, *, out: Path | None = None, plots: bool = True, json: Path | None = None) -> None:
    """Write a run's tables (Markdown, CSV) and plots (PNG, SVG): quality against speed, acceptance by position,
    where the time goes, accept length against temperature.

    Args:
        run (RUN): The folder that `mmspec evaluate` wrote, or FILE.part.jsonl of a bench that is not finished.
        out (DIR): Where tables and plots go; RUN/report when left out.
        plots: Draw plots too (needs mmspec\\[eval]).
    """
    check_writable(json)
    with refusing():
        from mmspec.evaluate.engine.media import run_folder
        from mmspec.evaluate.engine.shards import read_run

        folder = run_folder(run)
        found = read_run(folder)
        if plots:
            need_plots("--plots", "--no-plots")
    beside = folder.parent if folder.is_file() else folder
    save_json(json, show_report(found, beside / "report" if out is None else out, plots=plots))


def need_plots(option: str, without: str) -> None:
    """Raises ValueError where plots cannot be drawn."""
    from mmspec.evaluate.report.style import need_matplotlib

    try:
        need_matplotlib()
    except ValueError as error:
        raise ValueError(
            f'{option}: expected matplotlib, got none, pip install "mmspec[eval]" or say {without}'
        ) from error


def show_report(found: Records, folder: Path, *, plots: bool) -> dict[str, Any]:
    """Writes a report and prints its tables; its rows and notes, for JSON."""
    from mmspec.evaluate.report.build import write_report
    from mmspec.evaluate.report.tables import grids

    made = write_report(found, folder, plots=plots)
    for grid in grids(made.rows):
        print_table(grid.title, grid.heads, grid.lines, grid.figures)
    for note in made.notes:
        say(f"Warning: {note}", "yellow")
    say(f"{made.files[0]} and {len(made.files) - 1} more files beside it")
    return {"rows": made.rows, "notes": made.notes}
