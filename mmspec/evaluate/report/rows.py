"""Rows of a finished sweep: the speed of every cell against plain decoding on the same prompts and seeds, and quality."""

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
from mmspec.evaluate.quality.metrics import has_torchmetrics
from mmspec.evaluate.report.measures import distances, features, figures, quality_fields

Results = dict[str, list[list[Attempt]]]
BENCH_PLAIN = "plain"  # plain decoding in the text benches
_MISSING = Failure("it has no sample yet")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells that were run in turn on the same prompts."""

    shared: dict[str, Any]  # the settings of all cells
    cells: dict[str, list[dict]]  # the samples by cell, plain decoding first, in the order of prompts and numbers

    @property
    def plain(self) -> str | None:
        """Return the cell of plain decoding; None if it has no sample."""
        return next((cell for cell, samples in self.cells.items() if _is_plain(samples[0])), None)

    @property
    def name(self) -> str:
        """Return the table in words, such as "t2i, T = 1, guidance 4"."""
        shared = {name: value for name, value in self.shared.items() if name not in ("domain", "model", "temperature")}
        if shared.get("batch") == 1:
            del shared["batch"]
        # 0 means no filter of values, or a single token per step
        rest = [
            f"{name.replace('_', '-')} {value:g}"
            for name, value in shared.items()
            if isinstance(value, int | float) and value
        ]
        rest += [value for name, value in shared.items() if name == "task" and isinstance(value, str)]
        return ", ".join([self.shared["model"], f"T = {self.shared['temperature']:g}", *rest])


def tables(records: Records) -> list[Table]:
    """Return the groups of cells by domain, model and temperature."""
    cells: dict[str, list[dict]] = {}
    for sample in records.samples.values():
        cells.setdefault(sample["cell"], []).append(sample)
    grouped: dict[str, Table] = {}
    for cell, samples in cells.items():
        shared = {name: value for name, value in samples[0]["of"].items() if name not in ("decoding", "rule")}
        table = grouped.setdefault(json.dumps(shared, sort_keys=True), Table(shared, {}))
        table.cells[cell] = sorted(samples, key=lambda sample: (sample["prompt"], sample["digest"], sample["sample"]))
    for table in grouped.values():
        order = sorted(table.cells, key=lambda cell: _cell_order(table.cells[cell][0]))
        for cell in order:
            table.cells[cell] = table.cells.pop(cell)
    return sorted(
        grouped.values(), key=lambda table: (table.shared["domain"], table.shared["model"], table.shared["temperature"])
    )


def _is_plain(sample: dict) -> bool:
    return sample["of"]["decoding"] in (PLAIN, BENCH_PLAIN)


def _cell_order(sample: dict) -> tuple:
    """Sort plain decoding first, then exact methods, then relaxed methods, by name."""
    return not _is_plain(sample), not sample.get("exact", True), sample["title"], sample["of"]["rule"]


def rows(records: Records) -> list[dict]:
    """Return a row per cell as in benches, with the time of whole calls and the time after the prefill."""
    return [
        {**row, **_quality(records, table, table.cells[row["key"]])}
        for table in tables(records)
        for row in speed_rows(table)
    ]


def category_rows(records: Records) -> list[dict]:
    """Return the speed of every cell by category, for tables whose prompts have several categories."""
    table_rows = []
    for table in tables(records):
        names = sorted({sample["category"] for samples in table.cells.values() for sample in samples})
        for name in names if len(names) > 1 else ():
            cells = {
                cell: [sample for sample in samples if sample["category"] == name]
                for cell, samples in table.cells.items()
            }
            part = Table(table.shared, {cell: samples for cell, samples in cells.items() if samples})
            table_rows += [{"category": name or "-", **row} for row in speed_rows(part)]
    return table_rows


def speed_rows(table: Table) -> list[dict]:
    whole, decoded = results(table), results(table, decode_only=True)
    plain, greedy = table.plain, table.shared["temperature"] == 0
    table_rows = []
    for cell, samples in table.cells.items():
        against = plain or cell
        method = Method(cell, cell_title(samples[0]))
        row = timed_row(method, whole, {"ar": against}, table.shared, greedy)
        if plain is None:
            row |= {"speedup_vs_ar": None, "spread": None}
        ratios = paired_ratios(decoded[against], decoded[cell]) if plain else []
        table_rows.append(
            {
                **row,
                "table": table.name,
                "plain": cell == plain,
                "decoding": samples[0]["of"]["decoding"],
                "rule": samples[0]["of"]["rule"],
                "samples": sum(sample["failed"] is None for sample in samples),
                "speedup_interval": _median_interval(whole, plain, cell),
                "decode_speedup_vs_ar": middle(ratios),
                "decode_spread": spread(ratios),
                "decode_speedup_interval": _median_interval(decoded, plain, cell),
            }
        )
    return table_rows


def cell_title(sample: Mapping[str, Any]) -> str:
    """Return the title of a cell in rows and legends."""
    return sample["title"]


def results(table: Table, *, decode_only: bool = False) -> Results:
    """Return the attempts of every cell by prompt and sample, for the engine's statistics."""
    places = sorted({(sample["prompt"], sample["digest"]) for samples in table.cells.values() for sample in samples})
    numbers = sorted({sample["sample"] for samples in table.cells.values() for sample in samples})
    attempts: Results = {}
    for cell, samples in table.cells.items():
        known = {
            (sample["prompt"], sample["digest"], sample["sample"]): recorded_run(sample, decode_only=decode_only)
            for sample in samples
        }
        attempts[cell] = [[known.get((*place, number), _MISSING) for number in numbers] for place in places]
    return attempts


def _median_interval(whole: Results, plain: str | None, cell: str) -> list[float] | None:
    """Return the 90 % interval of the median ratio; prompts are resampled with all their samples."""
    if plain is None:
        return None
    groups = [paired_ratios([base], [own]) for base, own in zip(whole[plain], whole[cell], strict=True)]
    return interval([group for group in groups if group], lambda values: float(np.median(values)))


def _quality(records: Records, table: Table, samples: Sequence[dict]) -> dict[str, Any]:
    """Return the figures of the table's judge; {} for a cell without scores."""
    by = judge_of(records, table)
    entries: dict[str, list[dict]] = {}
    for sample in samples:
        if (sample["key"], by) in records.scores:
            entries.setdefault(sample["prompt"], []).append(records.scores[sample["key"], by])
    values = figures(entries)
    flat = [entry for group in entries.values() for entry in group]
    drawn = features(flat)
    if drawn is not None and has_torchmetrics():  # else a caution names the extra
        values |= distances(drawn, real_features(records, table.shared["model"], by), features(flat, "probabilities"))
    return quality_fields(values)


def judge_of(records: Records, table: Table) -> str | None:
    """Return the hash of the judges of a table; None without scores. Of several judges it is the judge with the most
    scores, so that all rows of the table have the same judge."""
    keys = [sample["key"] for samples in table.cells.values() for sample in samples]
    named = dict.fromkeys(
        header["judges"][table.shared["model"]]["hash"]
        for header in records.headers
        if table.shared["model"] in header["judges"]
    )
    counts = {by: sum((key, by) in records.scores for key in keys) for by in named}
    best = max(counts, key=lambda by: counts[by], default=None)
    return best if best is not None and counts[best] else None


def judge_row(records: Records, model: str, by: str) -> dict[str, Any]:
    return next(
        header["judges"][model] for header in records.headers if header["judges"].get(model, {}).get("hash") == by
    )


def real_features(records: Records, model: str, by: str) -> np.ndarray | None:
    """Return the features of the real pictures, in the order of their names."""
    extractor = judge_row(records, model, by).get("extractor_hash")
    entries = [entry for (of, _, hashed), entry in sorted(records.real.items()) if (of, hashed) == (model, extractor)]
    return features(entries)
