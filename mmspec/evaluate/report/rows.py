"""Rows of a finished sweep: speed of every cell against plain decoding on the same prompts and seeds, and quality."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmspec.evaluate.engine.plan import PLAIN
from mmspec.evaluate.engine.records import recorded_run
from mmspec.evaluate.engine.rows import timed_row
from mmspec.evaluate.engine.runs import Attempt, Failure
from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.engine.statistics import interval, middle, paired_ratios, spread
from mmspec.evaluate.engine.suite import Method
from mmspec.evaluate.report.measures import distances, features, figures, quality_fields

Results = dict[str, list[list[Attempt]]]
BENCH_PLAIN = "plain"  # what the benches of texts call it
_MISSING = Failure("it has no sample yet")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells that were run on the same prompts in turn.   said: what they have in common.   cells: samples by cell, those of
    plain decoding first, in the order of prompts and numbers."""

    said: dict[str, Any]
    cells: dict[str, list[dict]]

    @property
    def plain(self) -> str | None:
        """The cell of plain decoding; None where it has no sample."""
        return next((cell for cell, samples in self.cells.items() if _is_plain(samples[0])), None)

    @property
    def name(self) -> str:
        """In words: "t2i, T = 1, guidance 4"."""
        said = {name: value for name, value in self.said.items() if name not in ("domain", "model", "temperature")}
        if said.get("batch") == 1:
            del said["batch"]
        # 0 stands for no filter of values, and for one token a step
        rest = [
            f"{name.replace('_', '-')} {value:g}"
            for name, value in said.items()
            if isinstance(value, int | float) and value
        ]
        rest += [value for name, value in said.items() if name == "task" and isinstance(value, str)]
        return ", ".join([self.said["model"], f"T = {self.said['temperature']:g}", *rest])


def tables(found: Records) -> list[Table]:
    """Groups of cells, in the order in which models first appear."""
    cells: dict[str, list[dict]] = {}
    for one in found.samples.values():
        cells.setdefault(one["cell"], []).append(one)
    grouped: dict[str, Table] = {}
    for cell, samples in cells.items():
        said = {name: value for name, value in samples[0]["of"].items() if name not in ("decoding", "rule")}
        table = grouped.setdefault(json.dumps(said, sort_keys=True), Table(said, {}))
        table.cells[cell] = sorted(samples, key=lambda one: (one["prompt"], one["digest"], one["sample"]))
    for table in grouped.values():
        order = sorted(table.cells, key=lambda cell: _cell_order(table.cells[cell][0]))
        for cell in order:
            table.cells[cell] = table.cells.pop(cell)
    return sorted(
        grouped.values(), key=lambda table: (table.said["domain"], table.said["model"], table.said["temperature"])
    )


def _is_plain(sample: dict) -> bool:
    return sample["of"]["decoding"] in (PLAIN, BENCH_PLAIN)


def _cell_order(sample: dict) -> tuple:
    """Plain decoding first, then exact methods, then relaxed ones, by name."""
    return not _is_plain(sample), not sample.get("exact", True), sample["title"], sample["of"]["rule"]


def rows(found: Records) -> list[dict]:
    """A row per cell, as the benches have them, with seconds told twice: of whole calls, and behind the prefill alone."""
    return [
        {**row, **_quality(found, table, table.cells[row["key"]])}
        for table in tables(found)
        for row in speed_rows(table)
    ]


def category_rows(found: Records) -> list[dict]:
    """Speed of every cell on the prompts of each category alone, of tables whose prompts have several."""
    made = []
    for table in tables(found):
        names = sorted({one["category"] for samples in table.cells.values() for one in samples})
        for name in names if len(names) > 1 else ():
            cells = {cell: [one for one in samples if one["category"] == name] for cell, samples in table.cells.items()}
            part = Table(table.said, {cell: samples for cell, samples in cells.items() if samples})
            made += [{"category": name or "-", **row} for row in speed_rows(part)]
    return made


def speed_rows(table: Table) -> list[dict]:
    """A row per cell, of speed alone."""
    whole, decoded = results(table), results(table, decode_only=True)
    plain, greedy = table.plain, table.said["temperature"] == 0
    made = []
    for cell, samples in table.cells.items():
        against = plain or cell
        method = Method(cell, cell_title(samples[0]))
        row = timed_row(method, whole, {"ar": against}, table.said, greedy)
        if plain is None:
            row |= {"speedup_vs_ar": None, "spread": None}
        ratios = paired_ratios(decoded[against], decoded[cell]) if plain else []
        made.append(
            {
                **row,
                "table": table.name,
                "plain": cell == plain,
                "decoding": samples[0]["of"]["decoding"],
                "rule": samples[0]["of"]["rule"],
                "samples": sum(one["failed"] is None for one in samples),
                "speedup_interval": _median_interval(whole, plain, cell),
                "decode_speedup_vs_ar": middle(ratios),
                "decode_spread": spread(ratios),
                "decode_speedup_interval": _median_interval(decoded, plain, cell),
            }
        )
    return made


def cell_title(sample: Mapping[str, Any]) -> str:
    """What rows and legends call a cell."""
    return sample["title"]


def results(table: Table, *, decode_only: bool = False) -> Results:
    """Attempts of every cell by prompt and sample, as the engine's statistics take them."""
    places = sorted({(one["prompt"], one["digest"]) for samples in table.cells.values() for one in samples})
    numbers = sorted({one["sample"] for samples in table.cells.values() for one in samples})
    made: Results = {}
    for cell, samples in table.cells.items():
        known = {
            (one["prompt"], one["digest"], one["sample"]): recorded_run(one, decode_only=decode_only) for one in samples
        }
        made[cell] = [[known.get((*place, number), _MISSING) for number in numbers] for place in places]
    return made


def _median_interval(whole: Results, plain: str | None, cell: str) -> list[float] | None:
    """90 %, prompts resampled with all their samples."""
    if plain is None:
        return None
    groups = [paired_ratios([base], [own]) for base, own in zip(whole[plain], whole[cell], strict=True)]
    return interval([one for one in groups if one], lambda values: float(np.median(values)))


def _quality(found: Records, table: Table, samples: Sequence[dict]) -> dict[str, Any]:
    """Figures by the table's judge; empty where nobody has judged a cell yet."""
    by = judge_of(found, table)
    entries: dict[str, list[dict]] = {}
    for sample in samples:
        if (sample["key"], by) in found.scores:
            entries.setdefault(sample["prompt"], []).append(found.scores[sample["key"], by])
    values = figures(entries)
    flat = [entry for one in entries.values() for entry in one]
    drawn = features(flat)
    if drawn is not None:
        values |= distances(drawn, real_features(found, table.said["model"], by), features(flat, "probabilities"))
    return quality_fields(values)


def judge_of(found: Records, table: Table) -> str | None:
    """The hash of who judged the cells of a table: of several, whoever judged most samples, so that all rows of the table
    were judged by one; None where nobody has."""
    keys = [one["key"] for samples in table.cells.values() for one in samples]
    named = dict.fromkeys(one["judges"][table.said["model"]]["hash"] for one in found.headers
                          if table.said["model"] in one["judges"])  # fmt: skip
    counts = {by: sum((key, by) in found.scores for key in keys) for by in named}
    best = max(counts, key=lambda by: counts[by], default=None)
    return best if best is not None and counts[best] else None


def judge_row(found: Records, model: str, by: str) -> dict[str, Any]:
    """What headers say of a judge."""
    return next(one["judges"][model] for one in found.headers if one["judges"].get(model, {}).get("hash") == by)


def real_features(found: Records, model: str, by: str) -> np.ndarray | None:
    """Features of the real pictures, in the order of their names."""
    extractor = judge_row(found, model, by).get("extractor_hash")
    entries = [one for (of, _, hashed), one in sorted(found.real.items()) if (of, hashed) == (model, extractor)]
    return features(entries)
