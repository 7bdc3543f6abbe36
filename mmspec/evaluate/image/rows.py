"""What rows of `mmspec bench image` say beside the engine's figures: steps saved, and ties of greedy rows."""

from __future__ import annotations

from collections.abc import Mapping

from mmspec.evaluate.engine.domain import Timed
from mmspec.evaluate.engine.identity import Margin, parting
from mmspec.evaluate.engine.ratios import middle
from mmspec.evaluate.engine.runs import completed
from mmspec.evaluate.image.certainty import margin_at, watch
from mmspec.evaluate.image.methods import PLAIN


def complete(timed: Timed, rows: Mapping[str, dict]) -> None:
    """Adds to the rows of a setting the values a pass, the drafter's passes, and where greedy ones differ at ties only."""
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        row["step_compression"] = row["accept_length"]
        row["drafter_passes"] = middle([run.drafter_passes for run in completed(own)], 1)
        if timed.setting.temperature == 0:
            row |= parting(timed.results[PLAIN], own, lambda case: _margin(timed, case))


def _margin(timed: Timed, case: int) -> Margin:
    """By how much plain decoding preferred its values in a case to the likeliest others."""
    watched = watch(timed.resources, timed.setting, timed.cases[case], 0)
    return lambda row, place, other: margin_at(watched, row, place)
