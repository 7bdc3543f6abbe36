"""Bench results on the screen."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from mmspec.evaluate.pages.page import Page, right, sections


def tables(page: Page, result: dict) -> Iterator[Table | str]:
    """A rich table per setting, each followed by the sentences of its failures; then what the bench found."""
    for title, rows, failures in sections(page, result["rows"]):
        table = Table(title=title, title_justify="left")
        for number, head in enumerate(page.columns):
            table.add_column(head, justify="right" if right(number) else "left")
        for row in rows:
            table.add_row(*(cell(row) for cell in page.columns.values()))
        yield table
        yield from failures
    yield from page.notes


def environment_line(page: Page, result: dict) -> str:
    """One line on suite, model, machine and versions."""
    env = result["env"]
    versions = ", ".join(f"{name} {number}" for name, number in env["versions"].items())
    return (
        f"{page.about}; {env['model']}; {env['dtype']}, {env['processor']}, threads: {env['threads']}; "
        f"{versions}; `{env['command']}`"
    )
