"""What a finished bench shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mmspec.cli.console import save_json, screen


def bench_log(json: Path | None) -> Path | None:
    """Where a bench that writes `json` keeps what is finished until all is."""
    from mmspec.evaluate.bench_log import log_beside

    return log_beside(json)


def save_figures(json: Path | None, log: Path | None, result: dict) -> None:
    """Writes a finished bench; what was kept of it on the way has served, and the next run measures again."""
    save_json(json, result)
    if log is not None:
        log.unlink(missing_ok=True)


def show(
    result: dict,
    markdown: Path | None,
    plot: Path | None,
    panels: Callable[[dict], list],
    verdict: Callable[[dict], list[str]],
) -> None:
    """Prints the tables, writes them and the curves where asked to; raises ValueError for what `verdict` finds wrong."""
    from mmspec.core.files import write_text_atomic
    from mmspec.evaluate.plots import draw
    from mmspec.evaluate.report import environment_line, tables
    from mmspec.evaluate.report import markdown as as_markdown

    if markdown is not None:
        write_text_atomic(markdown, as_markdown(result))
    if plot is not None:
        draw(panels(result), plot)
    out = screen()
    out.print(environment_line(result), markup=False, soft_wrap=True)
    for part in tables(result):
        out.print(part, markup=False, soft_wrap=isinstance(part, str))
    wrong = verdict(result)
    if wrong:
        raise ValueError("; ".join(wrong))
