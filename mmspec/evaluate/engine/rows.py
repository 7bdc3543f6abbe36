"""Rows of a bench file: the figures of a method in a setting, and whether its output equals the baseline's."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from mmspec.evaluate.engine.runs import FAILURES, Attempt, completed, failures
from mmspec.evaluate.engine.statistics import mean, middle, paired_ratios, pairs, spread, time_split
from mmspec.evaluate.engine.suite import Method
from mmspec.run.timed_run import TimedRun, first_difference

TIE = 1e-3  # passes over several values and over a single value may round float32 log-weights this differently
# logits of passes of two widths may differ by this many units of a dtype's spacing at 1: logits lie between 16 and 32,
# where the spacing is 16 units, and rounding moves each of the two logits by up to two spacings
_ROUNDED = 64
Margin = Callable[[int, int, Hashable], float]


def tie_of(dtype: torch.dtype) -> float:
    """Return the margin of logits that rounding may explain between passes over several values and a single value."""
    return max(TIE, _ROUNDED * torch.finfo(dtype).eps)


def identical(peer: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> str | None:
    """Return how many requests gave the peer's output, as "29/30"; None if no request was completed by both."""
    both = pairs(peer, own)
    return f"{sum(a.output == b.output for a, b in both)}/{len(both)}" if both else None


def parting(
    peer: Sequence[Sequence[Attempt]],
    own: Sequence[Sequence[Attempt]],
    margins: Callable[[int], Margin],
    tie: float | None = None,
) -> dict:
    """Return how far the [case][repeat] outputs differ from the peer's. `ties` counts the outputs that differ only
    where the peer preferred its value by less than `tie`, TIE where left out. `margin` is the largest such preference,
    None where no outputs differ.

    `margins` is called once per case with a difference. It returns a function of (row, place, value): by how much the
    peer preferred its own value."""
    sizes = [difference.margin for difference in differences(peer, own, margins)]
    within = TIE if tie is None else tie
    return {
        "ties": sum(margin < within for margin in sizes),
        "margin": max((size for size in sizes if size < math.inf), default=None),
    }


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the output of a request differs from the peer's."""

    case: int
    row: int  # of the batch; of several, the row with the largest margin
    place: int  # in the output
    margin: float  # by how much the peer preferred its value; infinite where an output only continues the other


def differences(
    peer: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]], margins: Callable[[int], Margin]
) -> list[Difference]:
    """Return the requests whose output differs from the peer's; the arguments are those of `parting`."""
    of_case, first_differences = cache(margins), []
    for case, (first, second) in enumerate(zip(peer, own, strict=True)):
        for a, b in zip(first, second, strict=True):
            if isinstance(a, TimedRun) and isinstance(b, TimedRun) and a.output != b.output:
                rows = enumerate(zip(a.output, b.output, strict=True))
                parted = [
                    Difference(case, row, first_difference(x, y) - 1, _margin(of_case(case), row, x, y))
                    for row, (x, y) in rows
                    if x != y
                ]
                first_differences.append(max(parted, key=lambda difference: difference.margin))
    return first_differences


def _margin(margin: Margin, row: int, peer: Sequence, own: Sequence) -> float:
    """Return the margin at the first difference of two rows; infinite where one row only continues the other."""
    place = first_difference(peer, own) - 1
    return margin(row, place, own[place]) if place < min(len(peer), len(own)) else math.inf


Results = Mapping[str, Sequence[Sequence[Attempt]]]

# scripts outside the project rely on these fields: every timed row has them, and the ratio to each baseline
FIELDS = (
    "method", "exact", "batch", "temperature", "tokens", "target_passes", "accept_length", "seconds", "speedup_vs_ar",
    "spread", "draft_share", "target_share", "verify_share",
)  # fmt: skip


def timed_row(method: Method, results: Results, baselines: Mapping[str, str], shared: dict, greedy: bool) -> dict:
    """Return the row of a timed method. `tokens`, `target_passes` and `accept_length` are per row of the batch, see
    `passes`. `baselines` are keys by their name in row fields. `spread` refers to the first, and so does `identical`
    unless the method names another peer. Outputs are compared if `greedy`."""
    own = results[method.key]
    runs, failed = completed(own), failures(own)
    against = {name: paired_ratios(results[key], own) for name, key in baselines.items()}
    first, *others = against
    return {
        **method.row(),
        "exact": runs[0].exact if runs else None,
        **shared,
        "tokens": middle([run.tokens / len(run.output) for run in runs], 1),
        **passes(runs),
        "seconds": middle([run.seconds for run in runs], 4),
        **{f"speedup_vs_{name}": middle(ratios) for name, ratios in against.items()},
        "spread": spread(against[first]),
        **{f"spread_vs_{name}": spread(against[name]) for name in others},
        **time_split(runs),
        "identical": identical(results[method.like or baselines[first]], own) if greedy else None,
        "failed": failed[0].reason if failed else None,
        "requests": len(runs) + len(failed),
        "failed_requests": len(failed),
    }


def passes(runs: Sequence[TimedRun]) -> dict:
    """Return the target passes and the accept length: per row where methods count the passes of each row, else per
    request. The accept length per row is taken over all rows at once: the mean of single ratios would favour small
    batches."""
    counted = [count for run in runs for count in run.row_passes]
    if counted:
        length = round(sum(run.tokens for run in runs) / sum(counted), 3)
        return {"target_passes": middle(counted, 1), "accept_length": length}
    return {
        "target_passes": middle([run.target_passes for run in runs], 1),
        "accept_length": mean([run.accept_length for run in runs]),
    }


def judged_row(method: Method, plain: object, shared: dict) -> dict:
    """Return the row of a method whose output `plain`, the `QualityReference`, judges; a failure becomes a row with the
    reason."""
    row = {**method.row(), "exact": None, **shared, **plain.row, "failed": None, "requests": 1, "failed_requests": 0}
    try:
        return row | plain.judge(method)
    except (*FAILURES, ImportError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return row | {"failed": reason, "failed_requests": 1}
