"""A page of bench results: which tables, which columns, which sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from mmspec.evaluate.pages.columns import Cell


@dataclass(frozen=True, slots=True)
class Page:
    """about: what is compared.   columns: heads and the cells below them, the method's and its law's first.
    by: fields that split rows into tables.   title: of a table, from its rows.   notes: sentences below the tables.
    """

    about: str
    columns: dict[str, Cell]
    by: tuple[str, ...]
    title: Callable[[Sequence[dict]], str]
    notes: tuple[str, ...] = ()


def sections(page: Page, rows: Sequence[dict]) -> Iterator[tuple[str, list[dict], list[str]]]:
    """(title, rows, sentences on their failures) per table, in the order of the rows."""
    for _, group in groupby(rows, key=lambda row: [row[name] for name in page.by]):
        part = list(group)
        yield page.title(part), part, failure_notes(part)


def failure_notes(rows: Sequence[dict]) -> list[str]:
    """A sentence per row that failed, wholly or in part."""
    return [
        f"{row['method']} failed in {row['failed_requests']} of {row['requests']} requests: {row['failed']}"
        for row in rows
        if row.get("failed")
    ]


def right(number: int) -> bool:
    """Whether a column is of figures, which stand on the right; the first two say what and how exact."""
    return number > 1
