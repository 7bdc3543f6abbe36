"""Figures of rows of text: the costs of drafters, where texts part, and batches beside their prompts alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec import vlm
from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.observed_drafter import ObservedDrafter
from mmspec.evaluate.engine.rows import TIE, Margin, Results, differences, identical, parting
from mmspec.evaluate.engine.runs import TimedRun, completed
from mmspec.evaluate.engine.statistics import mean, middle, paired_ratios
from mmspec.evaluate.vlm.methods import PEER, PLAIN, VlmMethod
from mmspec.evaluate.vlm.requests import VlmPrompt, encode
from mmspec.evaluate.vlm.resources import VlmResources, drafter_specs
from mmspec.evaluate.vlm.runner import generation_arguments, margins, preference, timed_runner
from mmspec.evaluate.vlm.united import against_best, ratio_fields, run_columns
from mmspec.io.readers import read_json
from mmspec.zoo.files.registry import folder_of

# units of a dtype's spacing at 1 by which logits of passes of two widths may differ: logits lie between 16 and 32, where the
# spacing is 16 units, and rounding moves each of two logits by up to two of these
_ROUNDED = 64
MEASURED = 4  # requests a drafter is timed alone on
READINGS = 3  # of every prompt
Output = tuple[int, ...]


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
    name, batch = timed.setting.task.name, timed.setting.batch
    parted = [
        {"prompt": f"{name} {one.case * batch + one.row + 1}", "token": one.place + 1,
         "margin": None if one.margin == math.inf else one.margin}
        for one in differences(first, own, margins)
    ]  # fmt: skip
    return {**parting(first, own, margins, 0.0 if method.like else _tie(timed)), "parted": parted}


def _tie(timed: TimedSetting) -> float:
    """The margin of logits that the rounding of passes over several tokens may explain."""
    return max(TIE, _ROUNDED * torch.finfo(timed.resources.model.dtype).eps)


def card_of(name: str) -> dict:
    """What is known about the training of a drafter: the card of a zoo model or beside a saved one, {} without one."""
    choice = drafter_specs().get(name)
    if choice is not None and choice.part is None:
        return {}
    file = (Path(name) if choice is None else folder_of(choice.part)) / "card.json"
    return read_json(file) if file.is_file() else {}


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
    return against_best(best and rows[best]["method"], ratios)


def _ratio(row: dict, other: dict | None, name: str) -> float | None:
    if other is None or not row.get(name) or not other.get(name):
        return None
    return round(row[name] / other[name], 3)


def keep_alone(timed: TimedSetting) -> None:
    """Keep the greedy texts of prompts that were decoded alone, for the batches behind them."""
    for method in timed.methods:
        for number, attempts in enumerate(timed.results[method.key]):
            run = next((one for one in attempts if isinstance(one, TimedRun)), None)
            if run is not None:
                timed.resources.once(_name(timed, method, number), lambda run=run: run.output[0])


def alone_fields(method: VlmMethod, timed: TimedSetting, tie: float) -> dict:
    """Compare the rows of greedy batches with their prompts alone, which are decoded now unless their texts are kept.

    Args:
        method: A method of our own loop.
        timed: A greedy setting of batches.
        tie: The margin below which two tokens are equally likely up to rounding.

    Returns:
        `alone`: the prompts whose text is the same, as "31/32". `alone_ties`: of the others those that part at a tie.
        `alone_margin`: the largest margin at a first difference. All None where nothing was completed.
    """
    setting, made = timed.setting, list(timed.setting.task.make(timed.setting.prompts, timed.setting.seed))
    prompts: list[VlmPrompt] = []
    single, batched = [], []
    for case, attempts in enumerate(timed.results[method.key]):
        run = next((one for one in attempts if isinstance(one, TimedRun)), None)
        for row in range(setting.batch if run is not None else 0):
            number = case * setting.batch + row
            prompts.append(made[number])
            single.append([_as_run(_alone(method, timed, made[number], number))])
            batched.append([_as_run(run.output[row])])
    if not prompts:
        return {"alone": None, "alone_ties": None, "alone_margin": None}
    model, processor = timed.resources.model, timed.resources.processor

    def of_prompt(index: int) -> Margin:
        return margins(model, encode(processor, [prompts[index]]), single[index][0].output, setting.task.natural)

    found = parting(single, batched, of_prompt, tie)
    return {"alone": identical(single, batched), "alone_ties": found["ties"], "alone_margin": found["margin"]}


def _alone(method: VlmMethod, timed: TimedSetting, prompt: VlmPrompt, number: int) -> Output:
    """The text of a prompt alone."""

    def decode() -> Output:
        run = timed_runner(method, timed.resources, replace(timed.setting, batch=1))
        return run(encode(timed.resources.processor, [prompt]), timed.setting.seed).output[0]

    return timed.resources.once(_name(timed, method, number), decode)


def _name(timed: TimedSetting, method: VlmMethod, number: int) -> str:
    setting = timed.setting
    return f"alone: {method.key}, {setting.task.name}, {setting.limit} tokens, seed {setting.seed}, prompt {number}"


def _as_run(output: Output) -> TimedRun:
    """A run of which nothing but its text counts."""
    return TimedRun(0.0, (output,), 0, 0.0)
