"""What rows of `mmspec bench continuous` say beside the engine's figures: heads, acceptance, costs, and identity."""

from __future__ import annotations

from collections.abc import Mapping

from mmspec.evaluate.continuous.methods import PLAIN
from mmspec.evaluate.continuous.runner import HeadRun
from mmspec.evaluate.engine.domain import Timed
from mmspec.evaluate.engine.identity import identical
from mmspec.evaluate.engine.ratios import middle, pairs
from mmspec.evaluate.engine.runs import completed


def complete(timed: Timed, rows: Mapping[str, dict]) -> None:
    """Adds to the rows of a setting what heads did, what was accepted, and what windows cost.

    cost_ratio: c, seconds of a drafter's pass with its heads over those of plain decoding's, in the same requests.
    predicted_speedup: gamma / (gamma c + 1), which a window that always advances gamma steps comes to whatever it accepts;
    for patched windows only.   identical: requests that gave plain decoding's tokens bit for bit, of methods that must.
    """
    plain = timed.results[PLAIN]
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        runs: list[HeadRun] = completed(own)
        drafted, kept = sum(run.drafted for run in runs), sum(run.kept for run in runs)
        ratio = middle([cost for a, b in pairs(plain, own) if (cost := _cost(a, b)) is not None], 4)
        row["step_compression"] = row["accept_length"]
        row["head_calls"] = middle([run.head_calls for run in runs], 1)
        row["target_forwards"] = middle([run.forwards for run in runs], 1)
        row["drafter_passes"] = middle([run.drafter_passes for run in runs], 1)
        row["acceptance"] = round(kept / drafted, 4) if drafted else None
        row["cost_ratio"] = ratio
        row["predicted_speedup"] = predicted(method.gamma, ratio) if method.patch and ratio is not None else None
        row["identical"] = identical(plain, own) if method.bitwise else None


def predicted(gamma: int, cost: float) -> float:
    """The speed-up of windows that each take gamma passes of the drafter and one of the target, and advance by gamma."""
    return round(gamma / (gamma * cost + 1), 3)


def _cost(plain: HeadRun, own: HeadRun) -> float | None:
    """c of one request: seconds of a pass of the drafter over seconds of a pass of plain decoding."""
    passes = plain.target_passes - 1  # the first is the prefill
    if not own.drafter_passes or passes < 1 or not plain.parts["target"]:
        return None
    return (own.parts["draft"] / own.drafter_passes) / (plain.parts["target"] / passes)
