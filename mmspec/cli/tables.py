"""Tables that fit the screen: cells are wrapped, and a table that is still too wide is split by columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.cli.console import say, screen

_EDGE = 3  # columns of the screen that the border and the padding of a column take
_NARROWEST = 8  # to which a column of text is wrapped


@dataclass(frozen=True, slots=True)
class ScreenColumn:
    """A column of a table."""

    head: str
    cells: tuple[str, ...]
    is_right: bool = False  # aligned on the right; such cells are never wrapped
    is_first: bool = False  # it names the rows; such cells are wrapped only where the screen is narrower than they are

    @property
    def widest(self) -> int:
        from rich.cells import cell_len

        lines = [line for text in (self.head, *self.cells) for line in text.splitlines()]
        return max(map(cell_len, lines), default=1)

    @property
    def narrowest(self) -> int:
        """The width of the longest word, or of the longest cell where cells are not wrapped."""
        from rich.cells import cell_len

        whole = self.cells if self.is_right or self.is_first else ()
        parts = [*self.head.split(), *whole, *(word for cell in self.cells for word in cell.split())]
        longest = max(map(cell_len, parts), default=1)
        return min(max(longest, min(_NARROWEST, self.widest)), self.widest)


def print_table(title: str, heads: Sequence[str], rows: Iterable[Iterable[Any]], right: Collection[str] = ()) -> None:
    """Print a table no wider than the screen, in parts that all begin with the first column where it is too wide. The
    columns whose heads are in `right` are aligned on their right."""
    lines = [[str(value) for value in row] for row in rows]
    columns = [
        ScreenColumn(head, tuple(line[place] for line in lines), head in right, place == 0)
        for place, head in enumerate(heads)
    ]
    width = screen().width
    for number, part in enumerate(split_columns(columns, width)):
        _print_part(f"{title} (more columns)" if number else title, part, fitted_widths(part, width))


def split_columns(columns: Sequence[ScreenColumn], width: int) -> Iterator[list[ScreenColumn]]:
    """Yield groups of columns that fit a screen, each behind the first column."""
    first, part = columns[0], list(columns[:1])
    for column in columns[1:]:
        if len(part) > 1 and _total(each.narrowest for each in (*part, column)) > width:
            yield part
            part = [first]
        part.append(column)
    yield part


def fitted_widths(columns: Sequence[ScreenColumn], width: int) -> list[int]:
    """Narrow the widest columns until the table fits, to no less than the longest word if that fits."""
    widths, least = [column.widest for column in columns], [column.narrowest for column in columns]
    for floor in (least, [1] * len(columns)):
        while _total(widths) > width:
            wrapped = [place for place in range(len(widths)) if widths[place] > floor[place]]
            if not wrapped:
                break
            widths[max(wrapped, key=widths.__getitem__)] -= 1
    return widths


def _total(widths: Iterable[int]) -> int:
    return sum(width + _EDGE for width in widths) + 1


def _print_part(title: str, columns: Sequence[ScreenColumn], widths: Sequence[int]) -> None:
    from rich.markup import escape
    from rich.table import Table

    if title:
        say(title, "italic")
    table = Table()
    for column, width in zip(columns, widths, strict=True):
        justify = "right" if column.is_right else "left"
        table.add_column(escape(column.head), justify=justify, width=width, overflow="fold")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(escape, row))
    screen().print(table)
