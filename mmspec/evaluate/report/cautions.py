"""Cautions about the figures of a run."""

from __future__ import annotations

from collections.abc import Iterator

from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.report.rows import Table, judge_of, judge_row, real_features, tables

ZOO = "zoo CLIP"


def cautions(records: Records) -> list[str]:
    """Return the cautions of a run as sentences, the most serious first; [] without any."""
    grouped = tables(records)
    of_tables = [one for check in (_unequal, _unscored, _small) for table in grouped for one in check(records, table)]
    return list(dict.fromkeys([*of_tables, *_disturbed(records), *_labels(records)]))


def _listed(counts: set[int]) -> str:
    return ", ".join(map(str, sorted(counts)))


def _unequal(records: Records, table: Table) -> Iterator[str]:
    """Yield a caution where cells have different numbers of samples; cells that failed wholly are reported elsewhere."""
    counts = {sum(one["failed"] is None for one in samples) for samples in table.cells.values()} - {0}
    if len(counts) > 1:
        yield (f"{table.name}: cells have different numbers of samples ({_listed(counts)}); distances and scores of sets of "
               "different sizes cannot be compared, finish the run")  # fmt: skip


def _unscored(records: Records, table: Table) -> Iterator[str]:
    """Yield a caution where only a part of a table's samples is scored."""
    by = judge_of(records, table)
    completed = [one for samples in table.cells.values() for one in samples if one["failed"] is None]
    scored = sum((one["key"], by) in records.scores for one in completed)
    if by is not None and scored < len(completed):
        yield (f"{table.name}: {len(completed) - scored} of {len(completed)} samples are not scored; speed is that of all of "
               "them, quality that of the others, score the rest by running their command again")  # fmt: skip


def _small(records: Records, table: Table) -> Iterator[str]:
    """Yield cautions about sets with a singular covariance, and about real sets of another size."""
    by = judge_of(records, table)
    row = {} if by is None else judge_row(records, table.shared["model"], by)
    counts = {sum((one["key"], by) in records.scores for one in samples) for samples in table.cells.values()}
    counts -= {0}  # cells that failed wholly are reported elsewhere
    if not counts or not row.get("dim") or table.cells[next(iter(table.cells))][0]["shows"] != "picture":
        return
    real = real_features(records, table.shared["model"], by)
    if real is None:
        yield f"{table.name}: the prompts have no real pictures, so that there are no distances; name some by --reference"
        return
    least = min([*counts, len(real)])
    if least <= row["dim"]:
        yield (f"{table.name}: {least} pictures for the {row['dim']} features of {row['extractor']}: covariances are "
               "singular and Fréchet distances far too large; trust the kernel distance, or draw more")  # fmt: skip
    if counts != {len(real)}:
        yield (f"{table.name}: {_listed(counts)} drawn against {len(real)} real pictures; Fréchet distances depend on both "
               "numbers, compare them within this table alone")  # fmt: skip


def _disturbed(records: Records) -> Iterator[str]:
    """Yield cautions about disturbed timings."""
    workers = max((one["workers"] for one in records.headers), default=1)
    if workers > 1 or len({tuple(one["part"]) for one in records.headers}) > 1:
        yield "several workers ran at once and slowed one another: take speed from a run of one worker"
    machines = {(one["processor"], one["cores"], one["threads"]) for one in records.headers}
    if len(machines) > 1:
        yield (f"{len(machines)} kinds of machines or thread counts took part: ratios of samples that one of them began and "
               "another went on with mean nothing")  # fmt: skip


def _labels(records: Records) -> Iterator[str]:
    """Yield a caution about the scope of the extractor's figures."""
    if ZOO in {row.get("extractor") for one in records.headers for row in one["judges"].values()}:
        yield (f"pictures were read by the {ZOO}, which knows the zoo's world alone: its distances and scores are no FID, "
               "KID, Inception or CLIP score of any other table")  # fmt: skip


def failures(records: Records) -> list[str]:
    """Return a sentence per cell that failed, wholly or in part."""
    sentences = []
    for table in tables(records):
        for samples in table.cells.values():
            failed = [one for one in samples if one["failed"] is not None]
            if failed:
                sentences.append(f"{samples[0]['title']} ({table.name}) failed in {len(failed)} of {len(samples)} samples: "
                            f"{failed[0]['failed']}")  # fmt: skip
    return sentences
