"""What a reader of a run's figures must know before believing them."""

from __future__ import annotations

from collections.abc import Iterator

from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.report.rows import Table, judge_of, judge_row, real_features, tables

ZOO = "zoo CLIP"


def cautions(found: Records) -> list[str]:
    """Sentences, the gravest first; none for a run that nothing is wrong with."""
    grouped = tables(found)
    of_tables = [one for check in (_unequal, _unscored, _small) for table in grouped for one in check(found, table)]
    return list(dict.fromkeys([*of_tables, *_disturbed(found), *_labels(found)]))


def _listed(counts: set[int]) -> str:
    return ", ".join(map(str, sorted(counts)))


def _unequal(found: Records, table: Table) -> Iterator[str]:
    """Cells that cannot be compared since they have different numbers of samples; what failed wholly is told apart."""
    counts = {sum(one["failed"] is None for one in samples) for samples in table.cells.values()} - {0}
    if len(counts) > 1:
        yield (f"{table.name}: cells have different numbers of samples ({_listed(counts)}); distances and scores of sets of "
               "different sizes cannot be compared, finish the run")  # fmt: skip


def _unscored(found: Records, table: Table) -> Iterator[str]:
    """A table whose quality is that of a part of its samples."""
    by = judge_of(found, table)
    kept = [one for samples in table.cells.values() for one in samples if one["failed"] is None]
    scored = sum((one["key"], by) in found.scores for one in kept)
    if by is not None and scored < len(kept):
        yield (f"{table.name}: {len(kept) - scored} of {len(kept)} samples are not scored; speed is that of all of them, "
               "quality that of the others, score the rest by running their command again")  # fmt: skip


def _small(found: Records, table: Table) -> Iterator[str]:
    """Sets whose covariance is singular, and real sets of another size."""
    by = judge_of(found, table)
    row = {} if by is None else judge_row(found, table.said["model"], by)
    counts = {sum((one["key"], by) in found.scores for one in samples) for samples in table.cells.values()}
    counts -= {0}  # what failed wholly is told apart
    if not counts or not row.get("dim") or table.cells[next(iter(table.cells))][0]["shows"] != "picture":
        return
    real = real_features(found, table.said["model"], by)
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


def _disturbed(found: Records) -> Iterator[str]:
    """Timings that others disturbed."""
    workers = max((one["workers"] for one in found.headers), default=1)
    if workers > 1 or len({tuple(one["part"]) for one in found.headers}) > 1:
        yield "several workers ran at once and slowed one another: take speed from a run of one worker"
    machines = {(one["processor"], one["cores"], one["threads"]) for one in found.headers}
    if len(machines) > 1:
        yield (f"{len(machines)} kinds of machines or thread counts took part: ratios of samples that one of them began and "
               "another went on with mean nothing")  # fmt: skip


def _labels(found: Records) -> Iterator[str]:
    """What the extractor's figures stand for."""
    if ZOO in {row.get("extractor") for one in found.headers for row in one["judges"].values()}:
        yield (f"pictures were read by the {ZOO}, which knows the zoo's world alone: its distances and scores are no FID, "
               "KID, Inception or CLIP score of any other table")  # fmt: skip


def failures(found: Records) -> list[str]:
    """A sentence per cell that failed, wholly or in part."""
    made = []
    for table in tables(found):
        for samples in table.cells.values():
            failed = [one for one in samples if one["failed"] is not None]
            if failed:
                made.append(f"{samples[0]['title']} ({table.name}) failed in {len(failed)} of {len(samples)} samples: "
                            f"{failed[0]['failed']}")  # fmt: skip
    return made
