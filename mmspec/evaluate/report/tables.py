"""Tables of a sweep: a Markdown page and a CSV file, with the same figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.report.measures import MEASURES
from mmspec.evaluate.report.page import (
    Cell,
    Grid,
    bullets,
    document,
    fact_lines,
    figure,
    grid_of,
    joined,
    law,
    picture,
    ratio,
    run_facts,
)
from mmspec.evaluate.report.plots import grouped


def _measured(name: str) -> Cell:
    def cell(row: dict) -> str:
        if row.get(name) is None:
            return "-"
        ends = row.get(f"{name}_interval")
        return f"{row[name]:.4g}" + ("" if ends is None else f" ({ends[0]:.4g} to {ends[1]:.4g})")

    return cell


SPEED: dict[str, Cell] = {
    "method": lambda row: row["method"],
    "output": law,
    "samples": figure("samples"),
    "passes": figure("target_passes"),
    "accept length": figure("accept_length"),
    "x plain, end to end (10-90 %)": ratio("speedup_vs_ar", "spread"),
    "x plain, decode only (10-90 %)": ratio("decode_speedup_vs_ar", "decode_spread"),
    "identical": figure("identical"),
}


def by_table(rows: Sequence[dict]) -> dict[str, list[dict]]:
    return grouped(rows, itemgetter("table"))


def grids(rows: Sequence[dict]) -> list[Grid]:
    """Return the tables of all settings: the columns of speed, and those of measures that any row of the table has."""
    tables = []
    for title, part in by_table(rows).items():
        known = {name: measure for name, measure in MEASURES.items() if any(row.get(name) is not None for row in part)}
        tables.append(grid_of(title, SPEED | {entry.title: _measured(name) for name, entry in known.items()}, part))
    return tables


CATEGORY = ("samples", "accept length", "x plain, end to end (10-90 %)", "x plain, decode only (10-90 %)")


def category_grids(rows: Sequence[dict]) -> list[Grid]:
    """Return a table per setting with a row per category and method."""
    columns = {"category": figure("category"), "method": SPEED["method"], **{name: SPEED[name] for name in CATEGORY}}
    return [grid_of(f"{title}, by category", columns, part) for title, part in by_table(rows).items()]


READING = [
    "Exact methods keep the distribution of plain decoding: their quality differs by chance only. End to end is",
    "the whole call with the reading of pictures and the prefill; decode only is the time after the prefill.",
    "Ratios are medians over the same prompts and seeds; intervals of quality are 90 % by bootstrap over prompts.",
]


def page(
    records: Records,
    rows: Sequence[dict],
    categories: Sequence[dict],
    notes: Sequence[str],
    pictures: Mapping[str, str],
) -> str:
    """Return the Markdown page of a sweep; notes are cautions and failures, pictures are files beside the page by their
    titles."""
    return document(
        "Quality against speed",
        fact_lines(facts(records)),
        bullets(f"**{note}**" for note in notes),
        READING,
        *(picture(title, file) for title, file in pictures.items()),
        grids=[*grids(rows), *category_grids(categories)],
    )


def facts(records: Records) -> dict[str, str]:
    """Return how the run was measured, from the headers of all writers and the records of models."""
    models = ", ".join(f"{model['name']} ({model['dtype']}, {model['device']})" for model in records.models.values())
    return run_facts([header | header["about"] for header in records.headers], {"models": models}) | {
        "prompts": joined(
            records.headers,
            lambda one: (
                f"{model}: {row['count']} of {row['set']} ({row['hash']})" for model, row in one["prompts"].items()
            ),
        ),
        "pictures read by": joined(
            records.headers,
            lambda one: (
                f"{row['extractor']} {row['extractor_hash']}" for row in one["judges"].values() if "extractor" in row
            ),
        ),
        "writers": str(len(records.headers)),
    }


def as_csv(rows: Sequence[dict]) -> str:
    """Return all fields of all rows as CSV; intervals become two columns, NAME_low and NAME_high."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    paired = {name for name in row if name.endswith(("_interval", "spread"))}
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if name in paired:
            low, high = value or (None, None)
            fields |= {f"{name}_low": low, f"{name}_high": high}
        else:
            fields[name] = value
    return fields
