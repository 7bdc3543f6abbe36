"""Pages of results: cells of columns, tables with their titles and notes, and the Markdown of a whole page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Cell = Callable[[dict], str]
Columns = Mapping[str, Cell]
LABELS = 2  # leading columns with text in a table of rows: the method and its exactness


def figure(name: str) -> Cell:
    """Return the cell of a field as it is, "-" for None."""
    return lambda row: "-" if row.get(name) is None else f"{row[name]}"


def large(name: str) -> Cell:
    return lambda row: "-" if row.get(name) is None else f"{row[name]:,}"


def ratio(name: str, spread: str) -> Cell:
    """Return the cell of a field with the interval that another field holds."""

    def cell(row: dict) -> str:
        if row.get(name) is None:
            return "-"
        low, high = row[spread]
        return f"{row[name]} ({low}-{high})"

    return cell


def same(name: str, ties: str, margin: str) -> Cell:
    """Return the cell for equal output. The fields hold the requests that agree, "5/6", the number that differ at a
    tie, and the largest margin of a difference."""

    def cell(row: dict) -> str:
        if row.get(name) is None:
            return "-"
        tied = f" and {row[ties]} at a tie" if row.get(ties) else ""
        return row[name] + tied + ("" if row.get(margin) is None else f", margin {row[margin]:.2g}")

    return cell


def law(row: dict) -> str:
    """Return the cell for the exactness of a row."""
    return {True: "exact", False: "relaxed", None: "failed"}[row["exact"]]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of a page."""

    title: str
    heads: tuple[str, ...]  # of the columns
    lines: tuple[tuple[str, ...], ...]  # the cells of each
    labels: int = 1  # the number of first columns with text, aligned on the left; figures are aligned on the right
    notes: tuple[str, ...] = ()  # sentences below the table
    lead: str = ""  # a sentence between the title and the table

    @property
    def figures(self) -> tuple[str, ...]:
        """Return the heads of the columns that are aligned on the right."""
        return self.heads[self.labels :]


def grid_of(title: str, columns: Columns, rows: Sequence[dict], notes: Sequence[str] = ()) -> Grid:
    """Return the table of rows, whose first columns are the method and its exactness."""
    lines = tuple(tuple(cell(row) for cell in columns.values()) for row in rows)
    return Grid(title, tuple(columns), lines, LABELS, tuple(notes))


def document(
    title: str, *blocks: Sequence[str], grids: Iterable[Grid] = (), after: Iterable[Sequence[str]] = ()
) -> str:
    """Return a Markdown page: a heading, the lines of each paragraph, list, table or picture without empty blocks, then
    a section per grid, then blocks at the end."""
    sections = [
        block
        for grid in grids
        for block in ([f"## {grid.title}"], [grid.lead] if grid.lead else [], table_lines(grid), bullets(grid.notes))
    ]
    return "\n\n".join("\n".join(block) for block in ([f"# {title}"], *blocks, *sections, *after) if block) + "\n"


def bullets(sentences: Iterable[str]) -> list[str]:
    return [f"- {sentence}" for sentence in sentences]


def picture(title: str, file: str) -> list[str]:
    return [f"![{title}]({file})"]


def table_lines(grid: Grid) -> list[str]:
    rule = ["---" if number < grid.labels else "---:" for number in range(len(grid.heads))]
    return [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        for cells in (grid.heads, rule, *grid.lines)
    ]


def fact_lines(facts: Mapping[str, str | None]) -> list[str]:
    """Return the lines of a Markdown table of names and values; empty values are left out."""
    return table_lines(Grid("", ("", ""), tuple(pair for pair in facts.items() if pair[1]), labels=2))


def joined(headers: Sequence[Mapping], texts_of: Callable[[Mapping], Iterable[str]]) -> str:
    """Return the different texts of all headers with commas between them."""
    return ", ".join(dict.fromkeys(text for header in headers for text in texts_of(header)))


def run_facts(headers: Sequence[Mapping], models: Mapping[str, str]) -> dict[str, str]:
    """Return how and where figures were measured, from the environment of each process; `models` are by the name of the
    fact."""
    texts = {
        "command": lambda env: [f"`{env['command']}`"],
        "date": lambda env: [env["date"]],
        "machine": lambda env: [
            f"{env['processor']}, cores: {env['cores']}, threads: {env['threads']}, {env['system']}"
        ],
        "versions": lambda env: version_texts(env),
        "code and weights": lambda env: [env["code"]],
        "seed": lambda env: [str(env["seed"])],
    }
    facts = {name: joined(headers, texts_of) for name, texts_of in texts.items()}
    return {"command": facts.pop("command"), "date": facts.pop("date"), **models, **facts}


def version_texts(env: Mapping) -> list[str]:
    return [f"{name} {number}" for name, number in env["versions"].items()]
