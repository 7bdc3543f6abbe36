"""Bench results as tables: on the screen with rich, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Column:
    """head: the title.   cell: the text of a row, which shows the row's own figures."""

    head: str
    cell: Callable[[dict], str]


def _figure(name: str, unit: str = "") -> Callable[[dict], str]:
    return lambda row: "-" if row.get(name) is None else f"{row[name]}{unit}"


def _ratio(name: str, spread: str) -> Callable[[dict], str]:
    def cell(row: dict) -> str:
        if row.get(name) is None:
            return "-"
        low, high = row[spread]
        return f"{row[name]} ({low}-{high})"

    return cell


def _exact(row: dict) -> str:
    return {True: "exact", False: "relaxed", None: "failed"}[row["exact"]]


def _round(row: dict) -> str:
    parts = [row[f"{part}_ms"] for part in ("draft", "target", "verify", "other")]
    return "-" if parts[0] is None else " + ".join(map(str, parts))


VLM_COLUMNS = (
    Column("method", lambda row: row["method"]),
    Column("law", _exact),
    Column("passes", _figure("target_passes")),
    Column("accept length", _figure("accept_length")),
    Column("seconds", _figure("seconds")),
    Column("x plain (10-90 %)", _ratio("speedup_vs_ar", "spread_vs_ar")),
    Column("x transformers (10-90 %)", _ratio("speedup_vs_hf", "spread")),
    Column("ms a round: draft + target + verify + other", _round),
    Column("verify share", _figure("verify_share")),
    Column("identical", _figure("identical")),
)


def settings(rows: Sequence[dict]) -> Iterator[tuple[str, list[dict]]]:
    """(title, rows) per batch size and temperature, in the order of the rows."""
    for (batch, temperature), group in groupby(rows, key=lambda row: (row["batch"], row["temperature"])):
        part = list(group)
        first = part[0]
        yield (
            f"batch {batch}, T = {temperature:g}: {first['prompts']} prompts, {first['tokens']} new tokens, "
            f"mean top-1 probability {first['top1_probability']}, share of tokens inside the answer "
            f"{first['answer_share']}",
            part,
        )


def failure_notes(rows: Sequence[dict]) -> list[str]:
    """A sentence per row that failed, wholly or in part."""
    return [
        f"{row['method']} failed in {row['failed_requests']} of {row['requests']} requests: {row['failed']}"
        for row in rows
        if row.get("failed")
    ]


def tables(rows: Sequence[dict], columns: Sequence[Column] = VLM_COLUMNS) -> Iterator[Table | str]:
    """A rich table per setting, each followed by the sentences of its failures."""
    for title, part in settings(rows):
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(columns):
            table.add_column(column.head, justify="right" if number > 1 else "left")
        for row in part:
            table.add_row(*(column.cell(row) for column in columns))
        yield table
        yield from failure_notes(part)


def markdown(result: dict, columns: Sequence[Column] = VLM_COLUMNS) -> str:
    """The result as Markdown: where it was measured, then a table per setting."""
    lines = [environment_line(result["env"]), ""]
    for title, part in settings(result["rows"]):
        lines += [f"**{title}**", "", _line([c.head for c in columns])]
        lines.append(_line(["---" if number < 2 else "---:" for number in range(len(columns))]))
        lines += [_line([column.cell(row) for column in columns]) for row in part]
        lines += ["", *(f"- {note}" for note in failure_notes(part))]
        lines += [""] if lines[-1] else []
    lines += [f"- {note}" for note in same_drafts_notes(result)]
    return "\n".join(lines)


def same_drafts_notes(result: dict) -> list[str]:
    """A sentence per temperature on what each rule accepts of identical drafts."""
    notes = []
    for one in result.get("same_drafts", []):
        lengths = one["accept_length"]
        text = one.get("failed") or ", ".join(f"{name} {value}" for name, value in lengths.items())
        notes.append(
            f"accept length on identical sampled trees, T = {one['temperature']:g}, {one['prompts']} prompts: {text}"
        )
    return notes


def environment_line(env: dict) -> str:
    """One line on model, machine and versions."""
    versions = ", ".join(f"{name} {number}" for name, number in env["versions"].items())
    return (
        f"{env['model']}; {env['dtype']}, {env['processor']}, {env['threads']} threads; {versions}; `{env['command']}`"
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
