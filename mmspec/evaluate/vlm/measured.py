"""Entries of a bench file beside the rows: rules on the same drafts, and the cost of wider passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

import mmspec
from mmspec import vlm
from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import Target
from mmspec.core.round.rules.base import Rule, Weights
from mmspec.core.round.rules.by_name import resolve
from mmspec.core.round.tree import chain
from mmspec.evaluate.engine.resume_log import BenchLog
from mmspec.evaluate.engine.suite import Setting
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.runner import cases, generation_arguments
from mmspec.run.placement import clock
from mmspec.run.vlm_models import VlmResources

RULES, PROMPTS = ("traversal", "recursive", "match"), 10
DRAWS = 256  # uniforms per round: the accept length is a mean over them, so that only the drafts vary


class ComparingRule(Rule):
    """Decides as the first rule does, and records the mean accept length of every rule on each draft."""

    name = "compared"

    def __init__(self, names: Sequence[str]):
        self.rules = {name: resolve(name, greedy=False) for name in names}
        self.first = self.rules[names[0]]
        self.exact, self.proven_for = self.first.exact, self.first.proven_for
        self.lengths: dict[str, list[Tensor]] = {name: [] for name in names}
        self.noise = torch.Generator().manual_seed(0)

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        if draft.tree.nodes > 1:
            uniform = torch.rand(DRAWS, draft.batch, draft.tree.nodes, generator=self.noise).to(draft.value.device)
            for name, rule in self.rules.items():
                weights = rule.weigh(evidence, draft)
                depth = [rule.select(weights, u, draft).depth for u in uniform]
                self.lengths[name].append(torch.stack(depth).double().mean(0) + 1)
        return self.first.weigh(evidence, draft)

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return self.first.residual(evidence, draft, weights, node)

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        return self.first.resample(evidence, draft, weights, verdict, keys)


def accept_lengths(
    model: nn.Module,
    drafter: object,
    prompts: Iterable[Mapping[str, Tensor]],
    names: Sequence[str],
    **generation: object,
) -> dict[str, float]:
    """Return the mean accept length (bonus included) of each rule over the drafts of a sampled run of `names[0]`. All
    rules must support the drafter's drafts, such as ("traversal", "recursive", "match"). `generation` goes to
    `generate`."""
    rule = ComparingRule(names)
    for seed, inputs in enumerate(prompts):
        mmspec.generate(model, drafter=drafter, rule=rule, seed=seed, **inputs, **generation)
    return {name: float(torch.cat(lengths).mean()) for name, lengths in rule.lengths.items()}


def same_drafts(config: VlmBenchConfig, resources: VlmResources, log: BenchLog) -> dict:
    """Return {"same_drafts": [...]}, a record per temperature, if the methods include EAGLE trees under all RULES."""
    sampled = [temperature for temperature in config.temperatures if temperature > 0]
    if not {f"eagle-{rule}" for rule in RULES} <= {method.key for method in config.rows}:
        return {"same_drafts": []}
    return {"same_drafts": [log.once({"same drafts": t}, partial(_record, config, resources, t)) for t in sampled]}


def _record(config: VlmBenchConfig, resources: VlmResources, temperature: float) -> dict:
    """Return the accept lengths of the rules on identical drafts, or the reason why the drafter is missing."""
    first = replace(next(config.settings()), batch=1, temperature=temperature, prompts=min(config.prompts, PROMPTS))
    record: dict = {"temperature": temperature, "prompts": first.prompts, "accept_length": None}
    method = next(method for method in config.rows if method.key == f"eagle-{RULES[0]}")
    try:
        drafter = method.build_drafter(resources)
    except ValueError as error:
        return {**record, "failed": str(error)}
    arguments = generation_arguments(resources, first)
    lengths = accept_lengths(resources.model, drafter, cases(resources, first), RULES, **arguments)
    return {**record, "accept_length": {name: round(value, 4) for name, value in lengths.items()}}


WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
REPEATS = 7


def cost_curve(resources: VlmResources, setting: Setting) -> dict:
    """Measure the passes over the first prompt of a setting. `rows` are the widths, `ms` median milliseconds per pass,
    and `ratio` these divided by the first."""
    model = resources.model
    seconds = pass_seconds(model, cases(resources, setting)[0], clock=partial(clock, model.device))
    medians = [median(seconds[width]) for width in WIDTHS]
    return {
        "rows": list(WIDTHS),
        "ms": [round(1000 * middle, 3) for middle in medians],
        "ratio": [round(middle / medians[0], 3) for middle in medians],
    }


def pass_seconds(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    widths: Sequence[int] = WIDTHS,
    repeats: int = REPEATS,
    clock: Callable[[], float] = perf_counter,
) -> dict[int, list[float]]:
    """Time passes over drafts of several widths (tokens of a pass, root included) in turn and return the seconds by
    width, so that drifts of the machine affect all widths alike. A pass of each width before the timed repeats is not
    timed."""
    request = vlm.start(model, max_new_tokens=max(widths) + 2, do_sample=False, **inputs)
    request.step()
    seconds: dict[int, list[float]] = {width: [] for width in widths}
    for repeat in range(repeats + 1):
        for width in widths:
            draft = _draft(request.target, width)
            began = clock()
            request.target.score(draft)  # nothing is committed, so that the next pass discards it
            if repeat:
                seconds[width].append(clock() - began)
    return seconds


def _draft(target: Target, width: int) -> Draft:
    """Return a chain that repeats the last token; the tokens do not affect the cost."""
    root = target.pending[:, None]
    return Draft(root.expand(-1, width).contiguous(), chain(width - 1, root.device), Law("deterministic"))


def curve_text(curve: Mapping[str, Sequence[float]]) -> str:
    ratios = ", ".join(f"{rows}: {ratio:.2f}" for rows, ratio in zip(curve["rows"], curve["ratio"], strict=True))
    return f"a pass over so many rows in passes over one ({curve['ms'][0]:.1f} ms): {ratios}"
