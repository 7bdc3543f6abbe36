"""Paired ratios of timed runs, and the statistics that rows show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmspec.evaluate.engine.runs import Attempt, Run

PARTS = ("draft", "target", "verify", "other")  # of the decode time


def pairs(base: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> list[tuple[Run, Run]]:
    """The runs of two methods on every case and repeat that both completed."""
    both = [pair for case in zip(base, own, strict=True) for pair in zip(*case, strict=True)]
    return [(a, b) for a, b in both if isinstance(a, Run) and isinstance(b, Run)]


def paired_ratios(base: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> list[float]:
    """base seconds / own seconds of every case and repeat that both completed: above 1 where `own` is faster.

    Seconds are per emitted token: two exact methods may sample texts of different lengths. Equal texts make no
    difference.
    """
    return [a.seconds * b.tokens / (b.seconds * a.tokens) for a, b in pairs(base, own)]


def middle(values: Sequence[float], digits: int = 3) -> float | None:
    """The median, rounded; None of nothing."""
    return round(float(np.median(values)), digits) if len(values) else None


def spread(values: Sequence[float], digits: int = 3) -> list[float] | None:
    """The 10th and 90th percentile, rounded; None of nothing."""
    return [round(float(v), digits) for v in np.percentile(values, [10, 90])] if len(values) else None


def mean(values: Sequence[float]) -> float | None:
    """The mean, rounded; None of nothing."""
    return round(sum(values) / len(values), 3) if values else None


def time_split(runs: Sequence[Run]) -> dict:
    """Shares of the decode time (the call less the prefill) and milliseconds per round, by part: PARTS, and behind them
    those that only these runs have."""
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
