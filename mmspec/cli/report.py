"""`mmspec report`: the tables and plots of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import check_writable, refusing, save_json, say, spinner
from mmspec.cli.tables import print_table
from mmspec.cli.terminal import say_next

if TYPE_CHECKING:
    from mmspec.evaluate.engine.shards import Records


@command()
def report(run: Path, *, out: Path | None = None, plots: bool = True, json: Path | None = None) -> None:
    """Write the tables (Markdown, CSV) and plots (PNG, SVG) of a run.

    They show quality against speed, acceptance by position, shares of the time, and accept length against temperature.

    Args:
        run (RUN): Folder that `mmspec evaluate` wrote, or FILE.part.jsonl of an unfinished bench.
        out (DIR): Folder for tables and plots; RUN/report when left out.
        plots (--plots/--no-plots): Draw plots too (needs mmspec\\[eval]).

    Examples:
        mmspec report runs/zoo
        mmspec report runs/zoo --out page --no-plots
    """
    check_writable(json)
    with refusing():
        from mmspec.evaluate.base.media import run_folder
        from mmspec.evaluate.engine.shards import read_run

        folder = run_folder(run)
        records = read_run(folder)
        if plots:
            need_plots("--plots", "--no-plots")
    beside = folder.parent if folder.is_file() else folder
    save_json(json, show_report(records, beside / "report" if out is None else out, plots=plots))
    say_next(f"mmspec web --runs {beside.parent}")


def need_plots(option: str, without: str) -> None:
    """Refuse to draw plots without matplotlib; the options that draw plots and that leave them out are for the error."""
    from mmspec.evaluate.report.style import need_matplotlib

    try:
        need_matplotlib()
    except ValueError as error:
        raise ValueError(
            f'{option}: expected matplotlib, got none, pip install "mmspec[eval]" or say {without}'
        ) from error


def show_report(records: Records, folder: Path, *, plots: bool) -> dict[str, Any]:
    """Write a report and print its tables; return its rows and notes for JSON."""
    from mmspec.evaluate.report.build import write_report
    from mmspec.evaluate.report.tables import grids

    with spinner("writing tables and plots"):
        report = write_report(records, folder, plots=plots)
    for grid in grids(report.rows):
        print_table(grid.title, grid.heads, grid.lines, grid.figures)
    for note in report.notes:
        say(f"Warning: {note}", "yellow")
    say(f"{report.files[0]} and {len(report.files) - 1} more files beside it")
    return {"rows": report.rows, "notes": report.notes}
