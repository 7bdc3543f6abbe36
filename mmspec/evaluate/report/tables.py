"""Tables of a sweep: a Markdown page and a CSV file, with the same figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.report.bench_page import Cell, fact_lines, figure, law, ratio, table_lines
from mmspec.evaluate.report.measures import MEASURES


def _measured(name: str) -> Cell:
    def cell(row: dict) -> str:
        if row.get(name) is None:
            return "-"
        ends = row.get(f"{name}_interval")
        return f"{row[name]:.4g}" + ("" if ends is None else f" ({ends[0]:.4g} to {ends[1]:.4g})")

    return cell


SPEED: dict[str, Cell] = {
    "method": lambda row: row["method"],
    "law": law,
    "samples": figure("samples"),
    "passes": figure("target_passes"),
    "accept length": figure("accept_length"),
    "x plain, end to end (10-90 %)": ratio("speedup_vs_ar", "spread"),
    "x plain, decode only (10-90 %)": ratio("decode_speedup_vs_ar", "decode_spread"),
    "identical": figure("identical"),
}


def columns_of(rows: Sequence[dict]) -> dict[str, Cell]:
    """Heads and cells of a table: what is told of speed, and the measures that one of its rows has."""
    quality = {
        one.title: _measured(name) for name, one in MEASURES.items() if any(row.get(name) is not None for row in rows)
    }
    return {**SPEED, **quality}


def by_table(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """Rows of every table, by its title."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        found.setdefault(row["table"], []).append(row)
    return found


CATEGORY = ("samples", "accept length", "x plain, end to end (10-90 %)", "x plain, decode only (10-90 %)")


def category_lines(rows: Sequence[dict]) -> list[str]:
    """A table of every setting, a row per category and method; [] where there are no categories."""
    lines: list[str] = []
    columns = {"category": figure("category"), "method": SPEED["method"], **{name: SPEED[name] for name in CATEGORY}}
    for title, part in by_table(rows).items():
        lines += [f"## {title}, by category", "", *table_lines(columns, part), ""]
    return lines


def page(
    found: Records, rows: Sequence[dict], categories: Sequence[dict], notes: Sequence[str], pictures: Mapping[str, str]
) -> str:
    """A Markdown page.   categories: rows of single categories.   notes: cautions and failures.   pictures: files beside it,
    by what they show."""
    lines = ["# Quality against speed", "", *facts(found), ""]
    if notes:
        lines += [*(f"- **{note}**" for note in notes), ""]
    lines += [
        "Exact methods keep the law of plain decoding: their quality differs from its by chance alone. End to "
        "end is the whole call,",
        "pictures read and prompt prefilled included; decode only is what comes behind the prefill. Ratios are "
        "medians over the same",
        "prompts and seeds; intervals of quality are 90 % by bootstrap over prompts.",
        "",
    ]
    lines += [line for title, file in pictures.items() for line in (f"![{title}]({file})", "")]
    for title, part in by_table(rows).items():
        lines += [f"## {title}", "", *table_lines(columns_of(part), part), ""]
    return "\n".join([*lines, *category_lines(categories)])


def facts(found: Records) -> list[str]:
    """A table of how and with what the run was made, from the headers of all that wrote and the models' own lines."""

    def each(tell: Callable[[dict], Iterable[str]]) -> str:
        return ", ".join(dict.fromkeys(said for one in found.headers for said in tell(one)))

    told = {
        "command": each(lambda one: [f"`{one['command']}`"]),
        "date": each(lambda one: [one["date"]]),
        "models": ", ".join(f"{one['name']} ({one['dtype']}, {one['device']})" for one in found.models.values()),
        "machine": each(
            lambda one: [f"{one['processor']}, cores: {one['cores']}, threads: {one['threads']}, {one['system']}"]
        ),
        "versions": each(lambda one: (f"{name} {number}" for name, number in one["versions"].items())),
        "code and weights": each(lambda one: [one["about"]["code"]]),
        "seed": each(lambda one: [str(one["about"]["seed"])]),
        "prompts": each(
            lambda one: (
                f"{model}: {said['count']} of {said['set']} ({said['hash']})" for model, said in one["prompts"].items()
            )
        ),
        "pictures read by": each(
            lambda one: (
                f"{row['extractor']} {row['extractor_hash']}" for row in one["judges"].values() if "extractor" in row
            )
        ),
        "writers": str(len(found.headers)),
    }
    return fact_lines(told)


def as_csv(rows: Sequence[dict]) -> str:
    """All fields of all rows; pairs of ends in two columns, NAME_low and NAME_high."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    made = io.StringIO()
    writer = csv.DictWriter(made, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return made.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    paired = {name for name in row if name.endswith(("_interval", "spread"))}
    made: dict[str, Any] = {}
    for name, value in row.items():
        if name in paired:
            low, high = value or (None, None)
            made |= {f"{name}_low": low, f"{name}_high": high}
        else:
            made[name] = value
    return made
