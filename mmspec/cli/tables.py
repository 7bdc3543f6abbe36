"""What a finished bench shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.cli.console import save_json, screen

if TYPE_CHECKING:
    from mmspec.evaluate.engine.domain import Domain


def bench_log(json: Path | None) -> Path | None:
    """Where a bench that writes `json` keeps what is finished until all is."""
    from mmspec.evaluate.engine.log import log_beside

    return log_beside(json)


def save_figures(json: Path | None, log: Path | None, result: dict) -> None:
    """Writes a finished bench; what was kept of it on the way has served, and the next run measures again."""
    save_json(json, result)
    if log is not None:
        log.unlink(missing_ok=True)


def print_records(title: str, records: list[dict[str, str]]) -> None:
    """Prints records of the same keys as one table."""
    from rich.table import Table

    table = Table(*records[0], title=title, title_justify="left")
    for record in records:
        table.add_row(*record.values())
    screen().print(table)


def show(domain: Domain, result: dict, markdown: Path | None, plot: Path | None) -> None:
    """Prints the tables, writes them and the curves where asked to; raises ValueError for what is wrong with the rows."""
    from mmspec.core.files import write_text_atomic
    from mmspec.evaluate.engine.verdict import verdict
    from mmspec.evaluate.pages.markdown import linked
    from mmspec.evaluate.pages.markdown import markdown as as_markdown
    from mmspec.evaluate.pages.plots import draw
    from mmspec.evaluate.pages.tables import environment_line, tables

    page = domain.page(result)
    if markdown is not None:
        write_text_atomic(markdown, as_markdown(page, result, linked(plot, markdown)))
    if plot is not None:
        draw(domain.panels(result), plot)
    out = screen()
    out.print(environment_line(page, result), markup=False, soft_wrap=True)
    for part in tables(page, result):
        out.print(part, markup=False, soft_wrap=isinstance(part, str))
    wrong = verdict(domain, result)
    if wrong:
        raise ValueError("; ".join(wrong))
