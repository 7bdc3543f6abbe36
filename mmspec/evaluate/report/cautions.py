"""Cautions about the figures of a run."""

from __future__ import annotations

from collections.abc import Iterator

from mmspec.evaluate.engine.rows import timed_row
from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.engine.suite import Method
from mmspec.evaluate.quality.metrics import has_torchmetrics
from mmspec.evaluate.report.rows import Table, cell_title, judge_of, judge_row, real_features, results, tables

ZOO = "zoo CLIP"
EXCESS = 1.25  # a speed-up above this multiple of the accept length is not due to accepted drafts
FEW = 10  # samples below which medians vary widely from run to run


def cautions(records: Records) -> list[str]:
    """Return the cautions of a run as sentences, the most serious first."""
    grouped = tables(records)
    of_tables = [
        caution
        for check in (_too_fast, _few, _unequal, _unscored, _small)
        for table in grouped
        for caution in check(records, table)
    ]
    return list(dict.fromkeys([*of_tables, *_disturbed(records), *_labels(records), *_without_distances(records)]))


def _without_distances(records: Records) -> Iterator[str]:
    if any(score.get("features") is not None for score in records.scores.values()) and not has_torchmetrics():
        yield 'distances between pictures are left out: they need torchmetrics, pip install "mmspec[eval]"'


def _listed(counts: set[int]) -> str:
    return ", ".join(map(str, sorted(counts)))


def _too_fast(records: Records, table: Table) -> Iterator[str]:
    """Yield a caution per speed-up that the accept length does not explain."""
    if table.plain is None:
        return
    attempts = results(table)
    for cell, samples in table.cells.items():
        title = cell_title(samples[0])
        row = timed_row(Method(cell, title), attempts, {"ar": table.plain}, {}, greedy=False)
        speedup, length = row["speedup_vs_ar"], row["accept_length"]
        if speedup is None or speedup <= EXCESS * length or _has_cheap_passes(row, samples):
            continue
        yield (
            f"{table.name}: the speed-up of {title}, {speedup:.3g}, is more than {EXCESS:g} times its accept length, "
            f"{length:.3g} values per target pass; probably another process slowed plain decoding down, measure again "
            "on a quiet machine"
        )


def _has_cheap_passes(row: dict, samples: list[dict]) -> bool:
    """Return whether a method replaces the target's passes, or saves calls of a continuous model's head within them."""
    saves_heads = samples[0]["of"]["domain"] == "continuous" and not any(
        sample.get("drafter_passes") for sample in samples
    )
    return saves_heads or row["target_share"] == 0


def _few(records: Records, table: Table) -> Iterator[str]:
    """Yield a caution that names the methods with few samples."""
    counts = {
        cell_title(samples[0]): sum(sample["failed"] is None for sample in samples) for samples in table.cells.values()
    }
    few = [f"{title} ({count})" for title, count in counts.items() if 0 < count < FEW]
    if few:
        yield (
            f"{table.name}: fewer than {FEW} samples of {', '.join(few)}; figures of so few samples vary widely from run "
            "to run, raise --count or --samples"
        )


def _unequal(records: Records, table: Table) -> Iterator[str]:
    """Yield a caution where cells have different numbers of samples; cells that failed wholly are reported elsewhere."""
    counts = {sum(sample["failed"] is None for sample in samples) for samples in table.cells.values()} - {0}
    if len(counts) > 1:
        yield (
            f"{table.name}: cells have different numbers of samples ({_listed(counts)}); distances and scores of sets of "
            "different sizes cannot be compared, finish the run"
        )


def _unscored(records: Records, table: Table) -> Iterator[str]:
    """Yield a caution where only a part of a table's samples is scored."""
    by = judge_of(records, table)
    completed = [sample for samples in table.cells.values() for sample in samples if sample["failed"] is None]
    scored = sum((sample["key"], by) in records.scores for sample in completed)
    if by is not None and scored < len(completed):
        yield (
            f"{table.name}: {len(completed) - scored} of {len(completed)} samples are not scored; speed covers all "
            "samples, quality the scored samples only, run the command again to score the rest"
        )


def _small(records: Records, table: Table) -> Iterator[str]:
    """Yield cautions about sets with a singular covariance, and about real sets of another size."""
    by = judge_of(records, table)
    row = {} if by is None else judge_row(records, table.shared["model"], by)
    counts = {sum((sample["key"], by) in records.scores for sample in samples) for samples in table.cells.values()}
    counts -= {0}  # cells that failed wholly are reported elsewhere
    if not counts or not row.get("dim") or table.cells[next(iter(table.cells))][0]["shows"] != "picture":
        return
    real = real_features(records, table.shared["model"], by)
    if real is None:
        yield f"{table.name}: the prompts have no real pictures, so there are no distances; name a folder with --reference"
        return
    least = min([*counts, len(real)])
    if least <= row["dim"]:
        yield (
            f"{table.name}: {least} pictures for the {row['dim']} features of {row['extractor']}: covariances are "
            "singular and Fréchet distances far too large; trust the kernel distance, or draw more"
        )
    if counts != {len(real)}:
        yield (
            f"{table.name}: {_listed(counts)} drawn against {len(real)} real pictures; Fréchet distances depend on both "
            "numbers, compare them within this table alone"
        )


def _disturbed(records: Records) -> Iterator[str]:
    workers = max((header["workers"] for header in records.headers), default=1)
    if workers > 1 or len({tuple(header["part"]) for header in records.headers}) > 1:
        yield "several workers ran at once and slowed one another: measure speed with one worker"
    machines = {(header["processor"], header["cores"], header["threads"]) for header in records.headers}
    if len(machines) > 1:
        yield (
            f"{len(machines)} kinds of machines or thread counts took part: ratios between samples of different "
            "machines mean nothing"
        )


def _labels(records: Records) -> Iterator[str]:
    """Yield a caution about the scope of the extractor's figures."""
    if ZOO in {row.get("extractor") for header in records.headers for row in header["judges"].values()}:
        yield (
            f"pictures were read by the {ZOO}, which knows the zoo's world alone: its distances and scores are no FID, "
            "KID, Inception or CLIP score of any other table"
        )


def failures(records: Records) -> list[str]:
    """Return a sentence per cell that failed, wholly or in part."""
    sentences = []
    for table in tables(records):
        for samples in table.cells.values():
            failed = [sample for sample in samples if sample["failed"] is not None]
            if failed:
                sentences.append(
                    f"{samples[0]['title']} ({table.name}) failed in {len(failed)} of {len(samples)} samples: "
                    f"{failed[0]['failed']}"
                )
    return sentences
