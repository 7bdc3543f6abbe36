"""Rows of a bench file: the figures of one method in one setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmspec.evaluate.engine.identity import identical
from mmspec.evaluate.engine.method import Method
from mmspec.evaluate.engine.ratios import mean, middle, paired_ratios, spread, time_split
from mmspec.evaluate.engine.runs import FAILURES, Attempt, Run, completed, failures

Results = Mapping[str, Sequence[Sequence[Attempt]]]

# what scripts outside the project rely on: every timed row has them, and the ratio against each baseline
FIELDS = (
    "method", "exact", "batch", "temperature", "tokens", "target_passes", "accept_length", "seconds", "speedup_vs_ar",
    "spread", "draft_share", "target_share", "verify_share",
)  # fmt: skip


def timed_row(method: Method, results: Results, baselines: Mapping[str, str], shared: dict, greedy: bool) -> dict:
    """The row of a timed method.

    results: attempts by method, case and repeat.   baselines: methods that ratios are taken against, by the name fields
    call them by; `spread` is against the first, `identical` too where a method is like no other.
    shared: what all rows of the setting have.
    tokens: medians, a row of the batch.   target_passes, accept_length: see `passes`.
    """
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


def passes(runs: Sequence[Run]) -> dict:
    """Target passes and accept length: of single rows where methods count the passes of each, else of requests.

    Of single rows the accept length is over all of them at once, as within a batch: the mean of single ratios would
    flatter small batches.
    """
    counted = [count for run in runs for count in run.row_passes]
    if counted:
        length = round(sum(run.tokens for run in runs) / sum(counted), 3)
        return {"target_passes": middle(counted, 1), "accept_length": length}
    return {
        "target_passes": middle([run.target_passes for run in runs], 1),
        "accept_length": mean([run.accept_length for run in runs]),
    }


def judged_row(method: Method, plain: object, shared: dict) -> dict:
    """The row of a method whose output is judged. plain: a `Reference` of the domain; a failure is a row with the reason."""
    row = {**method.row(), "exact": None, **shared, **plain.row, "failed": None, "requests": 1, "failed_requests": 0}
    try:
        return row | plain.judge(method)
    except (*FAILURES, ImportError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return row | {"failed": reason, "failed_requests": 1}
