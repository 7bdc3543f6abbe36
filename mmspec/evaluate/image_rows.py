"""Rows of timed image requests, and whether greedy ones gave plain decoding's codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmspec.evaluate.bench import (
    Attempt,
    Run,
    completed,
    failures,
    identical,
    middle,
    paired_ratios,
    spread,
    time_split,
)
from mmspec.evaluate.image_certainty import margin_at, watch
from mmspec.evaluate.image_methods import PLAIN, ImageMethod, Setting
from mmspec.evaluate.image_prompts import Asked
from mmspec.evaluate.image_shelf import ImageShelf

TIE = 1e-3  # passes over several values and over one may round guided logits this differently in float32
Results = Mapping[str, Sequence[Sequence[Attempt]]]


def about(method: ImageMethod) -> dict:
    """Fields that name a row."""
    return {
        "method": method.title,
        "key": method.key,
        "family": method.family,
        "knob": method.knob,
        "rule": method.rule,
    }


def timed_row(method: ImageMethod, results: Results, shared: dict) -> dict:
    """The figures of a timed method. shared: what all rows of the setting have; results: attempts by method, case, repeat."""
    own = results[method.key]
    runs, failed = completed(own), failures(own)
    ratios = paired_ratios(results[PLAIN], own)
    # over all images at once, as within a batch: the mean of single ratios would flatter small batches
    passes = [count for run in runs for count in run.row_passes]
    compression = round(sum(run.tokens for run in runs) / sum(passes), 3) if runs else None
    return {
        **about(method),
        "exact": runs[0].exact if runs else None,
        **shared,
        "tokens": middle([run.tokens / len(run.output) for run in runs], 1),
        "target_passes": middle(passes, 1),
        "step_compression": compression,
        "accept_length": compression,
        "drafter_passes": middle([run.drafter_passes for run in runs], 1),
        "seconds": middle([run.seconds for run in runs], 4),
        "speedup_vs_ar": middle(ratios),
        "spread": spread(ratios),
        **time_split(runs),
        "identical": None,
        "failed": failed[0].reason if failed else None,
        "requests": len(runs) + len(failed),
        "failed_requests": len(failed),
    }


def add_identity(
    rows: Mapping[str, dict], results: Results, cases: Sequence[Sequence[Asked]], shelf: ImageShelf, setting: Setting
) -> None:
    """Adds to greedy rows how many requests gave plain decoding's codes, and how many of the others left it at a tie.

    identical: as "7/8".   ties: of the requests that differ, those where every image first differs at a value that plain
    decoding preferred by less than TIE.
    """
    margins: dict[int, object] = {}
    for key, row in rows.items():
        row["identical"] = identical(results[PLAIN], results[key])
        row["ties"] = 0
        for number, (plain, own) in enumerate(zip(results[PLAIN], results[key], strict=True)):
            for a, b in zip(plain, own, strict=True):
                if not (isinstance(a, Run) and isinstance(b, Run)) or a.output == b.output:
                    continue
                if number not in margins:
                    margins[number] = watch(shelf, setting, cases[number], 0)
                row["ties"] += all(
                    margin_at(margins[number], image, _first(x, y)) < TIE
                    for image, (x, y) in enumerate(zip(a.output, b.output, strict=True))
                    if x != y
                )


def _first(a: Sequence[int], b: Sequence[int]) -> int:
    """Where two sequences first differ."""
    return next(place for place, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
