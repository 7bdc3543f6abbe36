"""Bench results as a whole Markdown page, which needs no hand to be one of the documentation's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mmspec.evaluate.pages.page import Page, right, sections


def markdown(page: Page, result: dict, plot: str | None = None) -> str:
    """A title, how and where it was measured, what was found, the plot, and a table per setting.

    plot: of the picture, as the page links to it.
    """
    env = result["env"]
    lines = [f"# `mmspec bench {env['bench']} --suite {env['suite']}`: {page.about}", ""]
    lines += ["Written by the command below; not to be edited by hand.", "", *_measured(env), ""]
    if page.notes:
        lines += [*(f"- {note}" for note in page.notes), ""]
    if plot is not None:
        lines += [f"![{page.about}]({plot})", ""]
    for title, rows, failures in sections(page, result["rows"]):
        lines += [f"## {title}", "", table_line(page.columns)]
        lines.append(table_line(["---:" if right(number) else "---" for number in range(len(page.columns))]))
        lines += [table_line([cell(row) for cell in page.columns.values()]) for row in rows]
        lines += ["", *(f"- {note}" for note in failures)]
        lines += [""] if failures else []
    return "\n".join(lines)


def _measured(env: dict) -> list[str]:
    """A table of how and where."""
    versions = ", ".join(f"{name} {number}" for name, number in env["versions"].items())
    facts = {
        "command": f"`{env['command']}`",
        "date": env["date"],
        "model": f"{env['model']}, {env['dtype']}",
        "machine": f"{env['processor']}, cores: {env['cores']}, threads: {env['threads']}, {env['system']}",
        "versions": versions,
        "code and weights": env["code"],
        "seed": str(env["seed"]),
        "timing": env.get("timing"),
        "quality": env.get("quality"),
    }
    return [table_line(["", ""]), table_line(["---", "---"]), *(table_line(pair) for pair in facts.items() if pair[1])]


def linked(plot: Path | None, page: Path) -> str | None:
    """The path of a plot as a page at `page` links to it."""
    return None if plot is None else Path(os.path.relpath(plot, page.parent)).as_posix()


def table_line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
