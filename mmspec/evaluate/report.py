"""Bench results as tables: on the screen with rich, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.table import Table

from mmspec.evaluate.findings import findings
from mmspec.evaluate.suites import suite_of

Cell = Callable[[dict], str]


@dataclass(frozen=True, slots=True)
class Column:
    """head: the title.   cell: the text of a row, which shows the row's own figures."""

    head: str
    cell: Cell


def _figure(name: str) -> Cell:
    return lambda row: "-" if row.get(name) is None else f"{row[name]}"


def _grouped(name: str) -> Cell:
    return lambda row: "-" if row.get(name) is None else f"{row[name]:,}"


def _ratio(name: str, spread: str) -> Cell:
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


# every column a suite can name
COLUMNS: dict[str, Cell] = {
    "method": lambda row: row["method"],
    "law": _exact,
    "passes": _figure("target_passes"),
    "accept length": _figure("accept_length"),
    "seconds": _figure("seconds"),
    "x plain (10-90 %)": _ratio("speedup_vs_ar", "spread_vs_ar"),
    "x transformers (10-90 %)": _ratio("speedup_vs_hf", "spread"),
    "ms a round: draft + target + verify + other": _round,
    "verify share": _figure("verify_share"),
    "drafter passes a token": _figure("drafter_passes_per_token"),
    "prefill ms": _figure("drafter_prefill_ms"),
    "step ms": _figure("drafter_step_ms"),
    "round ms": _figure("drafter_round_ms"),
    "rows": _figure("drafter_rows"),
    "parameters": _grouped("parameters"),
    "training s": _figure("training_seconds"),
    "cost of MSD's": _figure("cost_vs_reference"),
    "accept length of MSD's": _figure("accept_vs_reference"),
    "best fixed": _figure("best_fixed"),
    "x best fixed (10-90 %)": _ratio("speedup_vs_best_fixed", "spread_vs_best_fixed"),
    "identical": _figure("identical"),
}


def columns_of(result: dict) -> list[Column]:
    """The columns that the suite of a bench file shows."""
    return [Column(head, COLUMNS[head]) for head in suite_of(result["env"]["suite"]).columns]


def settings(rows: Sequence[dict]) -> Iterator[tuple[str, list[dict]]]:
    """(title, rows) per task, batch size and temperature, in the order of the rows."""
    for (task, batch, temperature), group in groupby(rows, key=lambda r: (r["task"], r["batch"], r["temperature"])):
        part = list(group)
        first = part[0]
        title = f"{task}, batch {batch}, T = {temperature:g}: {first['prompts']} prompts, "
        if first["natural_end"]:
            title += f"at most {first['limit']} new tokens, mean top-1 probability {first['top1_probability']}"
        else:
            title += (
                f"{first['limit']} new tokens, mean top-1 probability {first['top1_probability']}, "
                f"share of tokens inside the answer {first['answer_share']}"
            )
        yield title, part


def failure_notes(rows: Sequence[dict]) -> list[str]:
    """A sentence per row that failed, wholly or in part."""
    return [
        f"{row['method']} failed in {row['failed_requests']} of {row['requests']} requests: {row['failed']}"
        for row in rows
        if row.get("failed")
    ]


def tables(result: dict) -> Iterator[Table | str]:
    """A rich table per setting, each followed by the sentences of its failures; then what the bench found."""
    columns = columns_of(result)
    for title, part in settings(result["rows"]):
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(columns):
            table.add_column(column.head, justify="right" if number > 1 else "left")
        for row in part:
            table.add_row(*(column.cell(row) for column in columns))
        yield table
        yield from failure_notes(part)
    yield from notes(result)


def markdown(result: dict) -> str:
    """The result as Markdown: where it was measured, then a table per setting."""
    columns = columns_of(result)
    lines = [environment_line(result["env"]), ""]
    for title, part in settings(result["rows"]):
        lines += [f"**{title}**", "", _line([c.head for c in columns])]
        lines.append(_line(["---" if number < 2 else "---:" for number in range(len(columns))]))
        lines += [_line([column.cell(row) for column in columns]) for row in part]
        lines += ["", *(f"- {note}" for note in failure_notes(part))]
        lines += [""] if lines[-1] else []
    lines += [f"- {note}" for note in notes(result)]
    return "\n".join(lines)


def notes(result: dict) -> list[str]:
    """Sentences below the tables."""
    return [*_same_drafts_notes(result), *findings(result)]


def _same_drafts_notes(result: dict) -> list[str]:
    """A sentence per temperature on what each rule accepts of identical drafts."""
    made = []
    for one in result.get("same_drafts", []):
        lengths = one["accept_length"]
        text = one.get("failed") or ", ".join(f"{name} {value}" for name, value in lengths.items())
        made.append(
            f"accept length on identical sampled trees, T = {one['temperature']:g}, {one['prompts']} prompts: {text}"
        )
    return made


def environment_line(env: dict) -> str:
    """One line on suite, model, machine and versions."""
    versions = ", ".join(f"{name} {number}" for name, number in env["versions"].items())
    return (
        f"{suite_of(env['suite']).about}; {env['model']}; {env['dtype']}, {env['processor']}, {env['threads']} threads; "
        f"{versions}; `{env['command']}`"
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
