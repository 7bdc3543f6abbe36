from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence
from mmspec.core.round.rules.base import Rule, Weights, live_nodes
from mmspec.core.round.rules.rejection import RecursiveRejection, TokenWise
from mmspec.core.round.rules.target_match import TargetMatch
from mmspec.kernels.log_law import Residual

_MATCH, _TOKEN, _RECURSIVE = TargetMatch(), TokenWise(), RecursiveRejection()


def exact_rule_for(draft: Draft) -> Rule:
    """Return the exact top-down rule; target-match where the values have no distribution and q is treated as 1."""
    if draft.law.kind != "categorical":
        return _MATCH
    return _RECURSIVE if draft.tree.max_rank else _TOKEN


class RelaxedRule(Rule):
    """Base of rules that loosen the exact top-down rule by other thresholds. Relaxed. After a rejection the value is
    drawn from the exact rule's [p - q]+ unless a rule overrides it. With acceptance probability f, [p - q f]+ brings
    the emitted distribution nearest to p, sum [q f - p]+ away in total variation ("Annealed Relaxation of Speculative
    Decoding for Faster Autoregressive Image Generation"). [p - q]+ is as near as long as sum q f >= sum min(p, q), for
    the first value only where f depends on later drafts. Drafts may be reused after a rejection, except under
    run-joint. Greedy requests use target-match."""

    exact = False
    proven_for = frozenset({("categorical", "without_replacement"), ("onehot", "deterministic"), ("none", "none")})

    def rule_for(self, draft: Draft, evidence: Evidence) -> Rule:
        return _MATCH if evidence.greedy else self

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        """Return the thresholds float [B, N] that replace `weights.threshold`."""
        raise TypeError(f"{type(self).__name__} must define relax")

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = exact_rule_for(draft).weigh(evidence, draft)
        if draft.tree.nodes > 1:
            weights.threshold = self.relax(weights, draft, live_nodes(evidence, draft))
        return weights

    def form(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Residual | None:
        if type(self).residual is not RelaxedRule.residual:
            return None
        return exact_rule_for(draft).form(evidence, draft, weights, node)

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return exact_rule_for(draft).residual(evidence, draft, weights, node)


def accepting(weights: Weights, draft: Draft, keep: Tensor, live: Tensor | None) -> Tensor:
    """Return thresholds of 1 at the nodes in `keep` bool [B, N] that count."""
    keep = keep.expand(draft.batch, -1)
    return torch.where(keep if live is None else keep & live, 1.0, weights.threshold)
