"""Tables and sentences on the kinds of request of a bench whose suite has rows over all of them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mmspec.evaluate.report.bench_page import Grid
from mmspec.evaluate.vlm.methods import PEER, PLAIN

# figures of compact tables: the field, and what it is
FIGURES = {"speedup_vs_hf": "x transformers", "accept_length": "accept length"}


def kind_grids(rows: Sequence[dict], together: str) -> tuple[Grid, ...]:
    """Per batch and temperature, a table of methods by kind for every field in FIGURES.

    Args:
        rows: All rows of a bench.
        together: The task of the rows over all kinds, which stand in the last column.

    Returns:
        The tables.
    """
    made = []
    for (batch, temperature), group in _settings(rows):
        where = f"batch {batch}, T = {temperature:g}"
        kinds = [*(task for task in dict.fromkeys(row["task"] for row in group) if task != together), together]
        cells = {(row["method"], row["task"]): row for row in group}
        methods = dict.fromkeys(row["method"] for row in group)
        for field, title in FIGURES.items():
            lines = [(method, *(_cell(cells.get((method, kind)), field) for kind in kinds)) for method in methods]
            made.append(Grid(f"{title} by kind, {where}", ("method", *kinds), tuple(lines)))
    return tuple(made)


def _cell(row: dict | None, field: str) -> str:
    return "-" if row is None or row[field] is None else f"{row[field]:.2f}"


def _settings(rows: Sequence[dict]) -> Iterator[tuple[tuple[int, float], list[dict]]]:
    for setting in dict.fromkeys((row["batch"], row["temperature"]) for row in rows):
        yield setting, [row for row in rows if (row["batch"], row["temperature"]) == setting]


def best_lines(rows: Sequence[dict], together: str) -> list[str]:
    """A sentence per batch and temperature on the fastest fixed drafter over all kinds and of each kind."""
    made = []
    for (batch, temperature), group in _settings(rows):
        drafted = [row for row in group if row["speedup_vs_hf"] and not row["controlled"]
                   and row["key"] not in (PEER, PLAIN) and not row["key"].startswith("hf-")]  # fmt: skip
        kinds = [together, *(task for task in dict.fromkeys(row["task"] for row in drafted) if task != together)]
        best = [max((row for row in drafted if row["task"] == kind), key=lambda row: row["speedup_vs_hf"], default=None)
                for kind in kinds]  # fmt: skip
        found = ", ".join(f"{row['task']} {row['speedup_vs_hf']:.2f}x ({row['method']})" for row in best if row)
        if found:
            made.append(f"fastest fixed drafter against transformers, batch {batch}, T = {temperature:g}: {found}")
    return made


def parted_lines(rows: Sequence[dict], together: str) -> list[str]:
    """A sentence per prompt whose greedy text is not that of transformers: where, by what margin, in which rows."""
    places: dict[tuple, list[str]] = {}
    for row in rows:
        for one in row.get("parted") or () if row["task"] != together else ():
            where = (one["prompt"], row["batch"], one["token"], _margin(one))
            places.setdefault(where, []).append(row["method"])
    return [
        f"{prompt}, batch {batch}, token {token}: another text than that of transformers, {margin} "
        f"({', '.join(dict.fromkeys(methods))})"
        for (prompt, batch, token, margin), methods in places.items()
    ]


def _margin(one: Mapping) -> str:
    """By how much transformers' token was preferred."""
    return "it only goes on or ends" if one["margin"] is None else f"margin {one['margin']:.2g}"
