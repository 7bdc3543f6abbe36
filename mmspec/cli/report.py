"""`mmspec report`: tables and plots of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.console import check_writable, refusing, reports_errors, save_json, screen
from mmspec.cli.options import Json

if TYPE_CHECKING:
    from mmspec.evaluate.engine.shards import Records

RUN = "The folder that `mmspec evaluate` wrote, or FILE.part.jsonl of a bench that is not finished."


@reports_errors
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=RUN)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where tables and plots go; RUN/report when left out.")
    ] = None,
    plots: Annotated[bool, typer.Option(help="Draw plots too (needs mmspec\\[eval]).")] = True,
    json: Json = None,
) -> None:
    """Write a run's tables (Markdown, CSV) and plots (PNG, SVG): quality against speed, acceptance by position,
    where the time goes, accept length against temperature."""
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
    from mmspec.evaluate.report.bench_page import rich_table
    from mmspec.evaluate.report.build import write_report
    from mmspec.evaluate.report.tables import by_table, columns_of

    made, out = write_report(found, folder, plots=plots), screen()
    for title, rows in by_table(made.rows).items():
        out.print(rich_table(title, columns_of(rows), rows, no_wrap=True))
    for note in made.notes:
        out.print(f"Note: {note}", markup=False, soft_wrap=True)
    out.print(f"{made.files[0]} and {len(made.files) - 1} more files beside it", markup=False, soft_wrap=True)
    return {"rows": made.rows, "notes": made.notes}
