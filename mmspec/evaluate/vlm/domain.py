"""The bench of models for text, tied together: fields of its rows and its domain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from mmspec import vlm
from mmspec.evaluate.engine.domain import Domain, TimedSetting
from mmspec.evaluate.engine.observed_drafter import ObservedDrafter
from mmspec.evaluate.engine.resume_log import BenchLog
from mmspec.evaluate.engine.rows import TIE, Results, differences, parting
from mmspec.evaluate.engine.runs import completed
from mmspec.evaluate.engine.statistics import mean, middle, paired_ratios, spread
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.measured import alone_fields, cost_curve, keep_alone, same_drafts
from mmspec.evaluate.vlm.methods import PEER, PLAIN, VlmMethod
from mmspec.evaluate.vlm.page import describe, page, panels
from mmspec.evaluate.vlm.resources import VlmResources, card_of, open_target
from mmspec.evaluate.vlm.runner import cases, certainty, generation_arguments, preference, runner
from mmspec.evaluate.vlm.united import ratio_fields, run_columns, united

# units of a dtype's spacing at 1 by which logits of passes of two widths may differ: logits lie between 16 and 32, where the
# spacing is 16 units, and rounding moves each of two logits by up to two of these
_ROUNDED = 64
MEASURED = 4  # requests a drafter is timed alone on
READINGS = 3  # of every prompt


def complete(timed: TimedSetting, rows: Mapping[str, dict]) -> None:
    """Adds to the rows of a setting what drafters cost to run and to train, and what relates the rows to one another."""
    suite, greedy = timed.config.plan(), timed.setting.temperature == 0
    if suite.united:
        for method in timed.methods:
            rows[method.key]["runs"] = run_columns(timed.results[method.key])
    if suite.alone and greedy and timed.setting.batch == 1:
        keep_alone(timed)
    for method in timed.methods:
        row, runs = rows[method.key], completed(timed.results[method.key])
        if suite.united:
            row |= ratio_fields([rows[PEER]], [row])
        peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
        row["peak_mb"] = round(max(peaks) / 1e6, 1) if peaks else None
        passes = [run.drafter_passes * len(run.output) / run.tokens for run in runs]
        row |= {"drafter_passes_per_token": mean(passes), "parameters": None, "training_seconds": None}
        if row["exact"] is not None:
            row |= training_of(method, timed.resources)
            row |= _costs(method, timed) if suite.measured else {}
        if greedy:
            row |= _parting(method, timed)
        if greedy and suite.alone and timed.setting.batch > 1 and method.engine == "mmspec":
            row |= alone_fields(method, timed, _tie(timed))
    _compare(timed, rows, suite.reference)


def _parting(method: VlmMethod, timed: TimedSetting) -> dict:
    """How near a tie a row parts from the one it is held against, and which prompts do. Strict rows may not part at all;
    others at what rounding explains."""
    peer = method.like or PEER
    first, own = timed.results[peer], timed.results[method.key]
    margins = cache(lambda case: preference(timed, case, peer))
    found = parting(first, own, margins, 0.0 if method.like else _tie(timed))
    parted = [
        {
            "prompt": f"{timed.setting.task.name} {one.case * timed.setting.batch + one.row + 1}",
            "token": one.place + 1,
            "margin": None if one.margin == math.inf else one.margin,
        }
        for one in differences(first, own, margins)
    ]
    return found | {"parted": parted}


def _tie(timed: TimedSetting) -> float:
    """The margin of logits that the rounding of passes over several tokens may explain."""
    return max(TIE, _ROUNDED * torch.finfo(timed.resources.model.dtype).eps)


def training_of(method: VlmMethod, resources: VlmResources) -> dict:
    """Parameters of a trained drafter, and the seconds its training took where a card tells."""
    drafter = resources.drafter(method.drafter)
    size = sum(p.numel() for p in drafter.parameters()) if isinstance(drafter, nn.Module) else None
    return {"parameters": size, "training_seconds": card_of(method.drafter).get("training", {}).get("seconds")}


def _costs(method: VlmMethod, timed: TimedSetting) -> dict:
    """A trained drafter timed alone; nothing for others, nor for what wraps one."""
    if method.drafter == "none" or not hasattr(drafter := method.build_drafter(timed.resources), "shape_for"):
        return {}
    asked = generation_arguments(timed.resources, timed.setting)
    return drafter_costs(timed.resources.model, drafter, timed.cases[:MEASURED], **asked)


def drafter_costs(model: nn.Module, drafter: object, cases: Sequence[Mapping[str, Tensor]], **generation) -> dict:
    """Medians over the rounds of one request per case.

    drafter_prefill_ms: reading the prompt.   drafter_round_ms: one draft, with what is read of the round before.
    drafter_step_ms: that by level of the draft.   drafter_cost_ms: prefill and one round.   drafter_rows: slots in the
    drafter's cache behind the prompt, None for one without a cache.
    """
    rounds: list[tuple[float, int]] = []  # seconds and levels of every draft
    timed = ObservedDrafter(drafter, lambda draft, seconds: rounds.append((seconds, draft.tree.max_depth)), READINGS)
    for seed, inputs in enumerate(cases):
        vlm.start(model, drafter=timed, seed=seed, **inputs, **generation).run()
    drafted = [(seconds, depth) for seconds, depth in rounds if depth]
    prefill = middle([1000 * seconds for seconds in timed.opened])
    round_ = middle([1000 * seconds for seconds, _ in drafted])
    return {
        "drafter_prefill_ms": prefill,
        "drafter_round_ms": round_,
        "drafter_step_ms": middle([1000 * seconds / depth for seconds, depth in drafted]),
        "drafter_cost_ms": None if round_ is None else round(prefill + round_, 3),
        "drafter_rows": middle(timed.rows, 1),
    }


def _compare(timed: TimedSetting, rows: Mapping[str, dict], reference: str) -> None:
    """Adds to the rows of one setting what relates them to one another.

    accept_vs_reference, cost_vs_reference: against the reference drafter's row, where there is one.
    best_fixed, speedup_vs_best_fixed, spread_vs_best_fixed: for a controlled row, against the best of the rows that leave
    the length of the same drafter fixed, plain decoding among them; best by its median against plain decoding.
    """
    other = rows.get(reference)
    for method in timed.methods:
        row = rows[method.key]
        if reference:
            row["accept_vs_reference"] = _ratio(row, other, "accept_length")
            row["cost_vs_reference"] = _ratio(row, other, "drafter_cost_ms")
        if method.controlled:
            fixed = [m.key for m in timed.methods if m.key == PLAIN or m.rivals == method.rivals and not m.controlled]
            row |= _against_best([key for key in fixed if rows[key]["speedup_vs_ar"]], rows, timed.results, method.key)


def _against_best(fixed: Sequence[str], rows: Mapping[str, dict], results: Results, key: str) -> dict:
    best = max(fixed, key=lambda name: rows[name]["speedup_vs_ar"], default=None)
    ratios = paired_ratios(results[best], results[key]) if best else []
    return {
        "best_fixed": best and rows[best]["method"],
        "speedup_vs_best_fixed": middle(ratios),
        "spread_vs_best_fixed": spread(ratios),
    }


def _ratio(row: dict, other: dict | None, name: str) -> float | None:
    if other is None or not row.get(name) or not other.get(name):
        return None
    return round(row[name] / other[name], 3)


TIMING = (
    "whole calls with vision tower and prefill; medians of paired ratios of seconds per emitted token; spread: "
    "10th and 90th percentile"
)


def environment(config: VlmBenchConfig, resources: VlmResources) -> dict:
    """What a bench file says of the model and the measuring."""
    return {
        "model": resources.name,
        "dtype": str(resources.model.dtype).removeprefix("torch."),
        "prompts": config.prompts,
        "timing": TIMING,
    }


def extras(config: VlmBenchConfig, resources: VlmResources, log: BenchLog) -> dict:
    """What the file holds beside the rows: accept lengths on identical drafts, and the cost curve of the target."""
    made = same_drafts(config, resources, log)
    if config.plan().curve:
        setting = next(config.settings())
        made["cost_curve"] = log.once({"cost curve": setting.task.name}, lambda: cost_curve(resources, setting))
    return made


DOMAIN = Domain(
    name="vlm",
    config=VlmBenchConfig,
    output="tokens of transformers",
    resources=lambda config: open_target(config.model, config.dtype),
    cases=cases,
    runner=runner,
    certainty=certainty,
    environment=environment,
    describe=describe,
    page=page,
    panels=panels,
    complete=complete,
    extras=extras,
    united=united,
    may_fail=lambda row: row["key"].startswith("hf-"),  # what transformers itself refuses
)
