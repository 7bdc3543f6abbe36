"""What a reader of a run's figures must know before believing them."""

from __future__ import annotations

from collections.abc import Sequence

from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.report.rows import Table, judge_of, judge_row, real_features, tables

ZOO = "zoo CLIP"


def cautions(found: Records) -> list[str]:
    """Sentences, the gravest first; none for a run that nothing is wrong with."""
    made = [*_unequal(found), *_unscored(found), *_small(found), *_disturbed(found), *_labels(found)]
    return list(dict.fromkeys(made))


def _unequal(found: Records) -> list[str]:
    """Cells that cannot be compared since they have different numbers of samples; what failed wholly is told apart."""
    made = []
    for table in tables(found):
        counts = {sum(one["failed"] is None for one in samples) for samples in table.cells.values()} - {0}
        if len(counts) > 1:
            listed = ", ".join(map(str, sorted(counts)))
            made.append(f"{table.name}: cells have different numbers of samples ({listed}); distances and scores of sets of "
                        "different sizes cannot be compared, finish the run")  # fmt: skip
    return made


def _unscored(found: Records) -> list[str]:
    """Tables whose quality is that of a part of their samples."""
    made = []
    for table in tables(found):
        by = judge_of(found, table)
        kept = [one for samples in table.cells.values() for one in samples if one["failed"] is None]
        scored = sum((one["key"], by) in found.scores for one in kept)
        if by is not None and scored < len(kept):
            made.append(
                f"{table.name}: {len(kept) - scored} of {len(kept)} samples are not scored; speed is that of all of them, "
                "quality that of the others, score the rest by running their command again"
            )
    return made


def _small(found: Records) -> list[str]:
    """Sets whose covariance is singular, and real sets of another size."""
    made = []
    for table in tables(found):
        by = judge_of(found, table)
        row = {} if by is None else judge_row(found, table.said["model"], by)
        counts = [sum((one["key"], by) in found.scores for one in samples) for samples in table.cells.values()]
        counts = [count for count in counts if count]  # what failed wholly is told apart
        if not counts or not row.get("dim") or table.cells[next(iter(table.cells))][0]["shows"] != "picture":
            continue
        real = real_features(found, table.said["model"], by)
        if real is None:
            made.append(
                f"{table.name}: the prompts have no real pictures, so that there are no distances; name some by --reference"
            )
            continue
        least = min([*counts, len(real)])
        if least <= row["dim"]:
            made.append(
                f"{table.name}: {least} pictures for the {row['dim']} features of {row['extractor']}: covariances are "
                "singular and Fréchet distances far too large; trust the kernel distance, or draw more"
            )
        if set(counts) != {len(real)}:
            listed = ", ".join(map(str, sorted(set(counts))))
            made.append(
                f"{table.name}: {listed} drawn against {len(real)} real pictures; Fréchet distances depend on both "
                "numbers, compare them within this table alone"
            )
    return made


def _disturbed(found: Records) -> list[str]:
    """Timings that others disturbed."""
    made = []
    workers = max((one["workers"] for one in found.headers), default=1)
    if workers > 1 or len({tuple(one["part"]) for one in found.headers}) > 1:
        made.append("several workers ran at once and slowed one another: take speed from a run of one worker")
    machines = {(one["processor"], one["cores"], one["threads"]) for one in found.headers}
    if len(machines) > 1:
        made.append(
            f"{len(machines)} kinds of machines or thread counts took part: ratios of samples that one of them began and "
            "another went on with mean nothing"
        )
    return made


def _labels(found: Records) -> list[str]:
    """What the extractor's figures stand for."""
    named = {row.get("extractor") for one in found.headers for row in one["judges"].values()}
    if ZOO not in named:
        return []
    return [f"pictures were read by the {ZOO}, which knows the zoo's world alone: its distances and scores are no FID, KID, "
            "Inception or CLIP score of any other table"]  # fmt: skip


def failures(found: Records) -> list[str]:
    """A sentence per cell that failed, wholly or in part."""
    return [sentence for table in tables(found) for sentence in _failures(table)]


def _failures(table: Table) -> Sequence[str]:
    made = []
    for samples in table.cells.values():
        failed = [one for one in samples if one["failed"] is not None]
        if failed:
            made.append(f"{samples[0]['title']} ({table.name}) failed in {len(failed)} of {len(samples)} samples: "
                        f"{failed[0]['failed']}")  # fmt: skip
    return made
