"""Figures of rows of text: costs of drafters, differences between texts, and batches compared with single prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from torch import Tensor, nn

from mmspec import vlm
from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.observed_drafter import ObservedDrafter
from mmspec.evaluate.engine.rows import Margin, Results, differences, identical, parting, tie_of
from mmspec.evaluate.engine.runs import completed
from mmspec.evaluate.engine.statistics import mean, middle, paired_ratios
from mmspec.evaluate.vlm.categories import accept_by_depth
from mmspec.evaluate.vlm.methods import PEER, PLAIN, VlmMethod
from mmspec.evaluate.vlm.runner import generation_arguments, margins, preference, timed_runner
from mmspec.evaluate.vlm.united import against_best, ratio_fields, run_columns
from mmspec.io.readers import read_json
from mmspec.run.placement import clock, inputs_on
from mmspec.run.timed_run import TimedRun
from mmspec.run.vlm_models import VlmResources, drafter_specs
from mmspec.run.vlm_requests import VlmPrompt, encode
from mmspec.zoo.files.registry import folder_of

MEASURED = 4  # requests on which a drafter is timed alone
READINGS = 3  # times that a drafter reads every prompt
Output = tuple[int, ...]


def complete(timed: TimedSetting, rows: Mapping[str, dict]) -> None:
    """Add to the rows of a setting the costs of drafters and the comparisons between rows."""
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
        if "accept by depth" in suite.columns:
            row["accept_by_depth"] = accept_by_depth(runs)
        row |= {"drafter_passes_per_token": mean(passes), "parameters": None, "training_seconds": None}
        if row["exact"] is not None:
            row |= training_of(method, timed.resources)
            row |= _costs(method, timed) if suite.measured else {}
        if greedy:
            row |= _parting(method, timed)
        if greedy and suite.alone and timed.setting.batch > 1 and method.engine == "mmspec":
            row |= alone_fields(method, timed, tie_of(timed.resources.model.dtype))
    _compare(timed, rows, suite.reference)


def _parting(method: VlmMethod, timed: TimedSetting) -> dict:
    """Return how near a tie the first differences of a row's texts are, and the prompts that differ. Texts of strict
    rows must be equal; other texts may differ where rounding explains it."""
    peer = method.like or PEER
    first, own = timed.results[peer], timed.results[method.key]
    margins = cache(lambda case: preference(timed, case, peer))
    name, batch = timed.setting.task.name, timed.setting.batch
    parted = [
        {
            "prompt": f"{name} {difference.case * batch + difference.row + 1}",
            "token": difference.place + 1,
            "margin": None if difference.margin == math.inf else difference.margin,
        }
        for difference in differences(first, own, margins)
    ]
    return {
        **parting(first, own, margins, 0.0 if method.like else tie_of(timed.resources.model.dtype)),
        "parted": parted,
    }


def card_of(name: str) -> dict:
    """Return the card of a drafter's training, from the zoo or beside a saved drafter; {} without a card."""
    choice = drafter_specs().get(name)
    if choice is not None and choice.part is None:
        return {}
    file = (Path(name) if choice is None else folder_of(choice.part)) / "card.json"
    return read_json(file) if file.is_file() else {}


def training_of(method: VlmMethod, resources: VlmResources) -> dict:
    """Return the parameters of a trained drafter and the seconds of its training, where its card has them."""
    drafter = resources.drafter(method.drafter)
    size = sum(p.numel() for p in drafter.parameters()) if isinstance(drafter, nn.Module) else None
    return {"parameters": size, "training_seconds": card_of(method.drafter).get("training", {}).get("seconds")}


def _costs(method: VlmMethod, timed: TimedSetting) -> dict:
    """Return the costs of a trained drafter timed alone; {} for other drafters and for wrappers around a drafter."""
    if method.drafter == "none" or not hasattr(drafter := method.build_drafter(timed.resources), "shape_for"):
        return {}
    arguments = generation_arguments(timed.resources, timed.setting)
    return drafter_costs(timed.resources.model, drafter, timed.cases[:MEASURED], **arguments)


def drafter_costs(model: nn.Module, drafter: object, cases: Sequence[Mapping[str, Tensor]], **generation) -> dict:
    """Time a drafter alone over the rounds of a request per case and return the medians; `generation` goes to
    `generate`.

    `drafter_prefill_ms` is reading the prompt. `drafter_round_ms` is a draft, with the reading of the round before, and
    `drafter_step_ms` the same per level of the draft. `drafter_cost_ms` is the prefill and a round. `drafter_rows` is
    the length of the drafter's cache after the prompt, None without a cache."""
    rounds: list[tuple[float, int]] = []  # seconds and levels of every draft
    own_clock = partial(clock, model.device)
    timed = ObservedDrafter(
        drafter, lambda draft, seconds: rounds.append((seconds, draft.tree.max_depth)), READINGS, own_clock
    )
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
    """Add to the rows of a setting the comparisons with the reference drafter and the best fixed length.

    `accept_vs_reference` and `cost_vs_reference` compare a row with the reference drafter's row.
    `speedup_vs_best_fixed` compares a controlled row with the fastest row that fixes the length of the same drafter,
    plain decoding included."""
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
    """Store the greedy texts of prompts decoded alone, for comparison with the batches that follow."""
    for method in timed.methods:
        for number, attempts in enumerate(timed.results[method.key]):
            run = next((attempt for attempt in attempts if isinstance(attempt, TimedRun)), None)
            if run is not None:
                timed.resources.once(_name(timed, method, number), lambda run=run: run.output[0])


def alone_fields(method: VlmMethod, timed: TimedSetting, tie: float) -> dict:
    """Compare the rows of greedy batches of our own loop with their prompts decoded alone; missing texts are decoded
    now. Two tokens are equally likely up to rounding below the margin `tie`.

    `alone` counts the prompts whose text is the same, as "31/32". `alone_ties` counts the other prompts whose first
    difference is a tie. `alone_margin` is the largest margin at a first difference. All are None where no request was
    completed."""
    setting, all_prompts = timed.setting, list(timed.setting.task.make(timed.setting.prompts, timed.setting.seed))
    prompts: list[VlmPrompt] = []
    single, batched = [], []
    for case, attempts in enumerate(timed.results[method.key]):
        run = next((attempt for attempt in attempts if isinstance(attempt, TimedRun)), None)
        for row in range(setting.batch if run is not None else 0):
            number = case * setting.batch + row
            prompts.append(all_prompts[number])
            single.append([_as_run(_alone(method, timed, all_prompts[number], number))])
            batched.append([_as_run(run.output[row])])
    if not prompts:
        return {"alone": None, "alone_ties": None, "alone_margin": None}
    model, processor = timed.resources.model, timed.resources.processor

    def of_prompt(index: int) -> Margin:
        inputs = inputs_on(encode(processor, [prompts[index]]), model)
        return margins(model, inputs, single[index][0].output, setting.task.natural)

    fields = parting(single, batched, of_prompt, tie)
    return {"alone": identical(single, batched), "alone_ties": fields["ties"], "alone_margin": fields["margin"]}


def _alone(method: VlmMethod, timed: TimedSetting, prompt: VlmPrompt, number: int) -> Output:
    def decode() -> Output:
        run = timed_runner(method, timed.resources, replace(timed.setting, batch=1))
        inputs = inputs_on(encode(timed.resources.processor, [prompt]), timed.resources.model)
        return run(inputs, timed.setting.seed).output[0]

    return timed.resources.once(_name(timed, method, number), decode)


def _name(timed: TimedSetting, method: VlmMethod, number: int) -> str:
    setting = timed.setting
    return f"alone: {method.key}, {setting.task.name}, {setting.limit} tokens, seed {setting.seed}, prompt {number}"


def _as_run(output: Output) -> TimedRun:
    """Return a run that holds a text and nothing else."""
    return TimedRun(0.0, (output,), 0, 0.0)
