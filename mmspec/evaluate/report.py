"""Bench results as tables: on the screen with rich, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from mmspec.evaluate.columns import Page
from mmspec.evaluate.image_page import image_page
from mmspec.evaluate.vlm_page import vlm_page


def page_of(result: dict) -> Page:
    """The page of a bench file."""
    return (image_page if result["env"].get("bench") == "image" else vlm_page)(result)


def failure_notes(rows: Sequence[dict]) -> list[str]:
    """A sentence per row that failed, wholly or in part."""
    return [
        f"{row['method']} failed in {row['failed_requests']} of {row['requests']} requests: {row['failed']}"
        for row in rows
        if row.get("failed")
    ]


def tables(result: dict) -> Iterator[Table | str]:
    """A rich table per setting, each followed by the sentences of its failures; then what the bench found."""
    page = page_of(result)
    for title, part in page.settings(result["rows"]):
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(page.columns):
            table.add_column(column.head, justify="right" if number > 1 else "left")
        for row in part:
            table.add_row(*(column.cell(row) for column in page.columns))
        yield table
        yield from failure_notes(part)
    yield from page.notes


def markdown(result: dict) -> str:
    """The result as Markdown: where it was measured, then a table per setting."""
    page = page_of(result)
    columns = page.columns
    lines = [environment_line(result), ""]
    for title, part in page.settings(result["rows"]):
        lines += [f"**{title}**", "", _line([c.head for c in columns])]
        lines.append(_line(["---" if number < 2 else "---:" for number in range(len(columns))]))
        lines += [_line([column.cell(row) for column in columns]) for row in part]
        lines += ["", *(f"- {note}" for note in failure_notes(part))]
        lines += [""] if lines[-1] else []
    lines += [f"- {note}" for note in page.notes]
    return "\n".join(lines)


def environment_line(result: dict) -> str:
    """One line on suite, model, machine and versions."""
    env = result["env"]
    versions = ", ".join(f"{name} {number}" for name, number in env["versions"].items())
    return (
        f"{page_of(result).about}; {env['model']}; {env['dtype']}, {env['processor']}, {env['threads']} threads; "
        f"{versions}; `{env['command']}`"
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
