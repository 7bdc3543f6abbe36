"""Columns of bench tables, and what a page of them needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Cell = Callable[[dict], str]


@dataclass(frozen=True, slots=True)
class Column:
    """head: the title.   cell: the text of a row, which shows the row's own figures."""

    head: str
    cell: Cell


@dataclass(frozen=True, slots=True)
class Page:
    """about: what is compared.   settings: splits rows into (title, rows) per table.   notes: sentences below them."""

    about: str
    columns: tuple[Column, ...]
    settings: Callable[[Sequence[dict]], Iterator[tuple[str, list[dict]]]]
    notes: tuple[str, ...]


def figure(name: str) -> Cell:
    """A field as it is, "-" for None."""
    return lambda row: "-" if row.get(name) is None else f"{row[name]}"


def grouped(name: str) -> Cell:
    """A large number."""
    return lambda row: "-" if row.get(name) is None else f"{row[name]:,}"


def ratio(name: str, spread: str) -> Cell:
    """A field with the interval that another one holds."""

    def cell(row: dict) -> str:
        if row.get(name) is None:
            return "-"
        low, high = row[spread]
        return f"{row[name]} ({low}-{high})"

    return cell


def law(row: dict) -> str:
    """What the row keeps of the target's law."""
    return {True: "exact", False: "relaxed", None: "failed"}[row["exact"]]
