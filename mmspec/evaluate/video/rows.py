"""What rows of `mmspec bench video` say beside the engine's figures: blocks, latency, predictions, and identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mmspec.evaluate.engine.domain import Timed
from mmspec.evaluate.engine.identity import identical
from mmspec.evaluate.engine.ratios import middle, paired_ratios
from mmspec.evaluate.engine.runs import completed
from mmspec.evaluate.quality.resampling import interval
from mmspec.evaluate.video.kinds import BLOCKS
from mmspec.evaluate.video.methods import ALONE, PLAIN
from mmspec.evaluate.video.prediction import Prices, predicted, prices
from mmspec.evaluate.video.runner import BlockRun


def complete(timed: Timed, rows: Mapping[str, dict]) -> None:
    """Adds to the rows of a setting how sure their speed is, and of blocks what became of them, their latency, and what the
    timing model predicts.

    speedup_interval: of the median ratio, 90 %, prompts resampled.   fewer_passes: plain's passes over the method's.
    """
    plain = timed.results[PLAIN]
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        by_case = [paired_ratios([a], [b]) for a, b in zip(plain, own, strict=True)]
        row["speedup_interval"] = interval([one for one in by_case if one], _median)
        passes = row["target_passes"]
        row["fewer_passes"] = round(rows[PLAIN]["target_passes"] / passes, 2) if passes else None
    if timed.resources.kind != BLOCKS:
        return
    runs = {method.key: completed(timed.results[method.key]) for method in timed.methods}
    price = prices(runs[PLAIN], runs.get(ALONE, []), [run for some in runs.values() for run in some])
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        row |= {**blocks(runs[method.key], method.key != ALONE), **_predictions(runs[method.key], price)}
        row["identical"] = identical(plain, own) if method.bitwise else None


def blocks(runs: Sequence[BlockRun], target: bool = True) -> dict:
    """What became of the blocks of requests, and how long each took.   target: as of `kept`.

    acceptance: share of the videos whose draft stands, block by block.   accepted_share: of all but first blocks.
    target_blocks: mean of a video.   latency_p50, latency_p95: seconds until a block of every row is finished.
    """
    seconds = [one for run in runs for one in run.stats.block_s]
    return {
        **kept([row for run in runs for row in run.stats.records], target),
        "target_forwards": middle([run.stats.target_forwards * target for run in runs], 1),
        "context_forwards": middle([run.stats.context_forwards * target for run in runs], 1),
        "drafter_passes": middle(
            [run.stats.drafter_passes if target else run.stats.target_forwards for run in runs], 1
        ),
        "latency_p50": _percentile(seconds, 50),
        "latency_p95": _percentile(seconds, 95),
    }


def kept(records: Sequence[Sequence], target: bool = True) -> dict:
    """Of videos, whose blocks drafts stand for.   target: it drew the others; else all are the drafter's."""
    table = np.array([[one.kept or not target for one in row] for row in records], dtype=float)
    if not table.size:
        return {"acceptance": None, "accepted_share": None, "target_blocks": None}
    return {
        "acceptance": [round(float(share), 4) for share in table.mean(0)],
        "accepted_share": round(float(table[:, 1:].mean()), 4) if table.shape[1] > 1 else 0.0,
        "target_blocks": round(float((1 - table).sum(1).mean()), 3),
    }


def _predictions(runs: Sequence[BlockRun], price: Prices) -> dict:
    """predicted_seconds: median.   prediction_ratio: measured over predicted seconds, median."""
    told = [(run.seconds, predicted(run, price)) for run in runs]
    return {
        "predicted_seconds": middle([guess for _, guess in told], 4),
        "prediction_ratio": middle([seconds / guess for seconds, guess in told if guess > 0], 3),
    }


def _median(values: np.ndarray) -> float:
    return float(np.median(values))


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 4) if values else None
