"""Statistics of rows: paired ratios of timed runs, medians, spreads, time shares and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mmspec.evaluate.engine.runs import Attempt
from mmspec.run.timed_run import TimedRun

PARTS = ("draft", "target", "verify", "other")  # of the decode time


def pairs(base: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> list[tuple[TimedRun, TimedRun]]:
    """Return the paired runs of every case and repeat that both methods completed."""
    both = [pair for case in zip(base, own, strict=True) for pair in zip(*case, strict=True)]
    return [(a, b) for a, b in both if isinstance(a, TimedRun) and isinstance(b, TimedRun)]


def paired_ratios(base: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> list[float]:
    """Return base seconds / own seconds of every case and repeat that both completed; above 1 where `own` is faster.
    The seconds are per generated token, since two exact methods may sample texts of different lengths."""
    return [a.seconds * b.tokens / (b.seconds * a.tokens) for a, b in pairs(base, own)]


def middle(values: Sequence[float], digits: int = 3) -> float | None:
    """Return the rounded median; None without values."""
    return round(float(np.median(values)), digits) if len(values) else None


def spread(values: Sequence[float], digits: int = 3) -> list[float] | None:
    """Return the rounded 10th and 90th percentiles; None without values."""
    return [round(float(v), digits) for v in np.percentile(values, [10, 90])] if len(values) else None


def mean(values: Sequence[float]) -> float | None:
    """Return the rounded mean; None without values."""
    return round(sum(values) / len(values), 3) if values else None


def time_split(runs: Sequence[TimedRun]) -> dict:
    """Return the share of the decode time (without the prefill) and the milliseconds per round of each part: PARTS,
    then further parts that these runs report."""
    split = [run for run in runs if run.parts is not None and run.decode_rounds > 0]
    row: dict = {}
    total = sum(run.seconds - run.parts["prefill"] for run in split)
    rounds = sum(run.decode_rounds for run in split)
    for part in dict.fromkeys((*PARTS, *(part for run in split for part in run.parts if part != "prefill"))):
        seconds = sum(run.parts.get(part, 0.0) for run in split)
        row[f"{part}_share"] = round(seconds / total, 4) if split else None
        row[f"{part}_ms"] = round(1000 * seconds / rounds, 3) if split else None
    row["prefill_ms"] = middle([1000 * run.parts["prefill"] for run in split], 3)
    return row


RESAMPLES = 1000
LEVELS = (5, 95)  # percent, a 90 % interval


def interval(
    groups: Sequence[Sequence], figure: Callable[[np.ndarray], float], resamples: int = RESAMPLES, seed: int = 0
) -> list[float] | None:
    """Return the 90 % bootstrap interval of a figure; None for fewer than two groups. A group, numbers [n] or rows [n,
    K], holds values that belong together, such as those of one prompt under several seeds. Whole groups are drawn with
    replacement. `figure` takes values [N] or [N, K]; resamples for which it is NaN are left out."""
    if len(groups) < 2:
        return None
    values = [np.asarray(group, dtype=float) for group in groups]
    drawn = np.random.default_rng(seed)
    resampled = []
    for _ in range(resamples):
        picked = drawn.integers(len(values), size=len(values))
        resampled.append(figure(np.concatenate([values[index] for index in picked])))
    known = [value for value in resampled if not np.isnan(value)]
    return [round(float(end), 4) for end in np.percentile(known, LEVELS)] if known else None
