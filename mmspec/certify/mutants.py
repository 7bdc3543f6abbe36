"""Mutants of rules, each with a mistake that accept steps are known to make."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict, expand_tree
from mmspec.core.round.rules import Rule, Weights
from mmspec.core.round.rules.base import at_node, law_row
from mmspec.kernels.law import law_of, mass_at


class RuleMutant(Rule):
    """A rule that changes a stage of another rule."""

    exact = True

    def __init__(self, rule: Rule):
        self.rule, self.name = rule, f"{type(self).__name__} {rule.name}"
        self.proven_for, self.chains_only = rule.proven_for, rule.chains_only
        self.takes_copies = rule.takes_copies

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        return self.rule.weigh(evidence, draft)

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        return self.rule.select(weights, uniform, draft)

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return self.rule.residual(evidence, draft, weights, node)


class Lenient(RuleMutant):
    """Thresholds are too high by a factor, by default 3 %."""

    def __init__(self, rule: Rule, factor: float = 1.03):
        super().__init__(rule)
        self.factor = factor

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = self.rule.weigh(evidence, draft)
        return replace(weights, threshold=weights.threshold * self.factor)


class AcceptsAll(RuleMutant):
    """Every test passes."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = self.rule.weigh(evidence, draft)
        return replace(weights, threshold=torch.ones_like(weights.threshold))


class AcceptsPossible(RuleMutant):
    """Every test of a value with positive probability passes, as with uniforms of 0."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = self.rule.weigh(evidence, draft)
        return replace(weights, threshold=(weights.threshold > 0).double())


class NoResidual(RuleMutant):
    """The value after a rejection is drawn from p."""

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return at_node(law_of(evidence.scores), node)


class NotRenormalised(RuleMutant):
    """After a rejection the value is drawn from [p - q]+ without scaling; `falls`, -1 for the last, gets the rest."""

    def __init__(self, rule: Rule, falls: int):
        super().__init__(rule)
        self.falls = falls

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        p = at_node(law_of(evidence.scores), node)
        goes_on = torch.zeros_like(p) if draft.law.scores is None else _law_below(draft, node)
        rest = (p - goes_on).clamp_min(0) if draft.law.scores is not None else self._without(draft, p, node)
        rest[:, self.falls] += (1 - rest.sum(-1)).clamp_min(0)
        return rest

    def _without(self, draft: Draft, p: Tensor, node: Tensor) -> Tensor:
        below = draft.tree.parent.expand(len(p), -1)[:, 1:] == node[:, None]
        drafted = torch.zeros_like(p).scatter_add(1, draft.value[:, 1:], below.to(p.dtype))
        return p * (drafted == 0)


class AgainstTarget(RuleMutant):
    """Every sibling is tested against p and q from before the rejection of earlier siblings."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        p, q, parent = law_of(evidence.scores), law_of(draft.law.scores), draft.tree.parent
        token, row = draft.value, law_row(draft)
        ratio = mass_at(p, parent, token) / mass_at(q, row[parent], token).clamp_min(1e-30)
        return Weights(ratio.clamp_max(1), "descend", p, q)

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        rest = (at_node(weights.p, node) - _law_below(draft, node)).clamp_min(0)
        return torch.where(rest.sum(-1, keepdim=True) > 0, rest, at_node(weights.p, node))


class WrongRow(RuleMutant):
    """The target's distribution is read a node too early or too late."""

    def __init__(self, rule: Rule, by: int):
        super().__init__(rule)
        self.by = by

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        return self.rule.weigh(self._moved(evidence), draft)

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return self.rule.residual(self._moved(evidence), draft, weights, node)

    def _moved(self, evidence: Evidence) -> Evidence:
        last = evidence.scores.shape[1] - 1
        row = (torch.arange(last + 1) + self.by).clamp(0, last)
        return replace(evidence, scores=evidence.scores[:, row])


class Greedy(RuleMutant):
    """The likeliest value replaces every draw."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        best = evidence.scores.argmax(-1)
        hit = draft.value == best.gather(1, expand_tree(draft.tree.parent, draft.batch))
        return Weights(hit.double(), "descend", extra=best)

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(at_node(weights.extra, node), evidence.scores.shape[-1]).double()


def _law_below(draft: Draft, node: Tensor) -> Tensor:
    """Return q of each row's children of the node, float [B, V]; zeros at a leaf."""
    q = law_of(draft.law.scores)
    leaf = (draft.tree.parent.expand(len(node), -1)[:, 1:] != node[:, None]).all(-1, keepdim=True)
    return at_node(q, law_row(draft)[node]).masked_fill(leaf, 0.0)
