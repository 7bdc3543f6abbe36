"""Several rules on the very same drafts: accept lengths that differ by the rule alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

import mmspec
from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.rules.by_name import resolve
from mmspec.evaluate.engine.resume_log import BenchLog
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.resources import VlmResources
from mmspec.evaluate.vlm.runner import cases, generation_arguments

RULES, PROMPTS = ("traversal", "recursive", "match"), 10
DRAWS = 256  # uniforms per round: the accept length is a mean over them, so the drafts are what varies


class ComparingRule(Rule):
    """Decides as the first rule does, and notes what every rule would have accepted of each draft on average."""

    name = "compared"

    def __init__(self, names: Sequence[str]):
        self.rules = {name: resolve(name, greedy=False) for name in names}
        self.first = self.rules[names[0]]
        self.exact, self.proven_for = self.first.exact, self.first.proven_for
        self.lengths: dict[str, list[Tensor]] = {name: [] for name in names}
        self.noise = torch.Generator().manual_seed(0)

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        if draft.tree.nodes > 1:
            uniform = torch.rand(DRAWS, draft.batch, draft.tree.nodes, generator=self.noise)
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
    """Mean accept length (bonus included) of each rule over the drafts one sampled run of `names[0]` makes.

    names: rules that all take the drafter's drafts, e.g. ("traversal", "recursive", "match").
    generation: arguments of `mmspec.generate`; the request must sample.
    """
    rule = ComparingRule(names)
    for seed, inputs in enumerate(prompts):
        mmspec.generate(model, drafter=drafter, rule=rule, seed=seed, **inputs, **generation)
    return {name: float(torch.cat(lengths).mean()) for name, lengths in rule.lengths.items()}


def same_drafts(config: VlmBenchConfig, resources: VlmResources, log: BenchLog) -> dict:
    """{"same_drafts": [...]}: a record per temperature, where all RULES on trees drawn by EAGLE are among the methods."""
    sampled = [one for one in config.temperatures if one > 0]
    if not {f"eagle-{rule}" for rule in RULES} <= {method.key for method in config.rows}:
        return {"same_drafts": []}
    return {"same_drafts": [log.once({"same drafts": t}, partial(_record, config, resources, t)) for t in sampled]}


def _record(config: VlmBenchConfig, resources: VlmResources, temperature: float) -> dict:
    """Accept lengths of the rules on identical drafts; the reason where the drafter is missing."""
    first = replace(next(config.settings()), batch=1, temperature=temperature, prompts=min(config.prompts, PROMPTS))
    record: dict = {"temperature": temperature, "prompts": first.prompts, "accept_length": None}
    method = next(method for method in config.rows if method.key == f"eagle-{RULES[0]}")
    try:
        drafter = method.build_drafter(resources)
    except ValueError as error:
        return {**record, "failed": str(error)}
    asked = generation_arguments(resources, first)
    lengths = accept_lengths(resources.model, drafter, cases(resources, first), RULES, **asked)
    return {**record, "accept_length": {name: round(value, 4) for name, value in lengths.items()}}
