"""A page of bench results: columns and cells, tables on the screen, and the Markdown page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.table import Table

from mmspec.evaluate.engine.suite import Suite

Cell = Callable[[dict], str]


def figure(name: str) -> Cell:
    """A field as it is, "-" for None."""
    return lambda row: "-" if row.get(name) is None else f"{row[name]}"


def large(name: str) -> Cell:
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


def shares(row: dict) -> str:
    """Of the decode time."""
    parts = [row.get(f"{part}_share") for part in ("draft", "target", "verify")]
    return "-" if parts[0] is None else " + ".join(f"{part:.2f}" for part in parts)


def identical_cell(row: dict) -> str:
    """How many requests gave the baseline's output; of the others how many at a tie, and the largest margin they parted at."""
    if row.get("identical") is None:
        return "-"
    tied = f" and {row['ties']} at a tie" if row.get("ties") else ""
    return row["identical"] + tied + ("" if row.get("margin") is None else f", margin {row['margin']:.2g}")


# columns of every domain; a domain adds its own
COLUMNS: dict[str, Cell] = {
    "method": lambda row: row["method"],
    "law": law,
    "passes": figure("target_passes"),
    "accept length": figure("accept_length"),
    "seconds": figure("seconds"),
    "x plain (10-90 %)": ratio("speedup_vs_ar", "spread"),
    "draft + target + verify share": shares,
    "identical": identical_cell,
}

# of domains whose output is judged as pictures
IMAGE_COLUMNS: dict[str, Cell] = {
    "Frechet (90 %)": ratio("frechet", "frechet_interval"),
    "of plain's own (90 %)": ratio("frechet_ratio", "frechet_ratio_interval"),
    "CLIP score": figure("clip_score"),
    "retrieval": figure("retrieval"),
    "judge": figure("judge"),
}


@dataclass(frozen=True, slots=True)
class Grid:
    """A compact table: a figure of many rows at once.

    Attributes:
        title: What the figure is, and of which rows.
        heads: The heads of the columns, that of the names of the lines first.
        lines: The cells.
    """

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """about: what is compared.   columns: heads and the cells below them, the method's and its law's first.
    by: fields that split rows into tables.   title: of a table, from its rows.   notes: sentences below the tables.
    grids: compact tables behind the others.   has_table: the rows that full tables show.
    """

    about: str
    columns: dict[str, Cell]
    by: tuple[str, ...]
    title: Callable[[Sequence[dict]], str]
    notes: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    has_table: Callable[[dict], bool] = lambda row: True


def suite_page(
    suites: Mapping[str, Suite],
    result: dict,
    columns: Mapping[str, Cell],
    by: tuple[str, ...],
    title: Callable[[Sequence[dict]], str],
    notes: Iterable[str],
) -> Page:
    """The page of a bench file: the columns that its suite names, in their order; the other arguments as `Page` has them."""
    suite = suites[result["env"]["suite"]]
    return Page(suite.about, {head: columns[head] for head in suite.columns}, by, title, tuple(notes))


def counts(rows: Sequence[dict], unit: str = "prompts") -> list[str]:
    """How many requests of a table were timed, and of how many images its quality figures are, in words."""
    first = rows[0]
    text = [f"{first['prompts']} {unit} timed"] if first.get("prompts") else []
    images = next((row["images"] for row in rows if row.get("images")), None)
    if images:
        text.append(f"{images} images a quality figure, plain's own Frechet distance {first.get('frechet_ar')}")
    return text


def best_rows(
    groups: Mapping[str, Sequence[dict]], describe: Callable[[Mapping], str], name: str = "speedup_vs_ar"
) -> list[str]:
    """A sentence on the row of each group whose figure is the largest; none on an empty group."""
    best = {text: max(rows, key=lambda row: row[name]) for text, rows in groups.items() if rows}
    return [f"{text}: {row['method']}; {describe(row)}, {row[name]}x" for text, row in best.items()]


def near_plain(row: dict) -> bool:
    """Whether the images of a row are within 5 % of plain decoding's own Frechet distance."""
    return (row.get("frechet_ratio") or 2.0) <= 1.05


def sections(page: Page, rows: Sequence[dict]) -> Iterator[tuple[str, list[dict], list[str]]]:
    """(title, rows, sentences on their failures) per table, in the order of the rows."""
    shown = filter(page.has_table, rows)
    for _, group in groupby(shown, key=lambda row: [row[name] for name in page.by]):
        part = list(group)
        yield page.title(part), part, failure_notes(part)


def failure_notes(rows: Sequence[dict]) -> list[str]:
    """A sentence per row that failed, wholly or in part."""
    return [
        f"{row['method']} failed in {row['failed_requests']} of {row['requests']} requests: {row['failed']}"
        for row in rows
        if row.get("failed")
    ]


def is_right_aligned(number: int) -> bool:
    """Whether a column is of figures, which stand on the right; the first two say what and how exact."""
    return number > 1


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
        lines += [f"## {title}", "", *table_lines(page.columns, rows), "", *(f"- {note}" for note in failures)]
        lines += [""] if failures else []
    for grid in page.grids:
        lines += [f"## {grid.title}", "", *grid_lines(grid), ""]
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
    return fact_lines(facts)


def linked(plot: Path | None, page: Path) -> str | None:
    """The path of a plot as a page at `page` links to it."""
    return None if plot is None else Path(os.path.relpath(plot, page.parent)).as_posix()


def table_line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_lines(columns: Mapping[str, Cell], rows: Sequence[dict]) -> list[str]:
    """A Markdown table."""
    rule = ["---:" if is_right_aligned(number) else "---" for number in range(len(columns))]
    return [
        table_line(cells)
        for cells in (list(columns), rule, *([cell(row) for cell in columns.values()] for row in rows))
    ]


def grid_lines(grid: Grid) -> list[str]:
    """A Markdown table."""
    rule = ["---", *("---:" for _ in grid.heads[1:])]
    return [table_line(cells) for cells in (grid.heads, rule, *grid.lines)]


def fact_lines(facts: Mapping[str, str | None]) -> list[str]:
    """A Markdown table of names and values; values that are empty are left out."""
    return [table_line(pair) for pair in (("", ""), ("---", "---"), *facts.items()) if pair[1] or not pair[0]]


def rich_table(title: str, columns: Mapping[str, Cell], rows: Iterable[dict], **first: object) -> Table:
    """A table for the screen.   first: how the first column is shown."""
    lines = ([cell(row) for cell in columns.values()] for row in rows)
    return _screen_table(title, tuple(columns), lines, is_right_aligned, **first)


def _screen_table(
    title: str, heads: Sequence[str], lines: Iterable[Sequence[str]], is_right: Callable[[int], bool], **first: object
) -> Table:
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if is_right(number) else "left", **({} if number else first))
    for line in lines:
        table.add_row(*line)
    return table


def tables(page: Page, result: dict) -> Iterator[Table | str]:
    """A rich table per setting, each followed by the sentences of its failures; then what the bench found."""
    for title, rows, failures in sections(page, result["rows"]):
        yield rich_table(title, page.columns, rows)
        yield from failures
    for grid in page.grids:
        yield _screen_table(grid.title, grid.heads, grid.lines, bool)
    yield from page.notes


def environment_line(page: Page, result: dict) -> str:
    """One line on suite, model, machine and versions."""
    env = result["env"]
    versions = ", ".join(f"{name} {number}" for name, number in env["versions"].items())
    return (
        f"{page.about}; {env['model']}; {env['dtype']}, {env['processor']}, threads: {env['threads']}; "
        f"{versions}; `{env['command']}`"
    )
