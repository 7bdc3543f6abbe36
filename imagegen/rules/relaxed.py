"""What relaxed rules share: the exact rule they loosen, whose thresholds they raise and whose residual they keep."""

from __future__ import annotations

from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.rules import RecursiveRejection, Rule, TargetMatch, TokenWise, Weights
from mmspec.core.rules.laws import live_nodes

_MATCH, _TOKEN, _RECURSIVE = TargetMatch(), TokenWise(), RecursiveRejection()


def exact_twin(draft: Draft) -> Rule:
    """The exact top-down rule of a draft: token-wise on chains, recursive rejection on trees, target-match where the
    drafted values have no law and q is treated as 1.
    """
    if draft.law.kind != "categorical":
        return _MATCH
    return _RECURSIVE if draft.tree.max_rank else _TOKEN


class Relaxed(Rule):
    """Base of rules that accept more than the exact top-down rule: `relax` raises its thresholds. Relaxed: the output does
    not have the target's law.

    A step that accepts x with probability f(x) >= min(1, p / q) is nearest to p in total variation when what follows a
    rejection has the law [p - q f]+ ("Annealed Relaxation of Speculative Decoding for Faster Autoregressive Image
    Generation"). Where p > q it is p - q, since f = 1 there; elsewhere it is 0: it is [p - q]+ whatever f is, so the exact
    rule's residual is kept as it is, through all siblings.

    Every node is judged by what was drawn down to it and beside it, so drafts may live on after a rejection.
    A greedy request is judged by target-match: its laws are one-hot and only the target's own value has mass to accept.
    """

    exact = False
    proven_for = frozenset({("categorical", "without_replacement"), ("onehot", "deterministic"), ("none", "none")})

    def on(self, draft: Draft, evidence: Evidence) -> Rule:
        return _MATCH if evidence.greedy else self

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        """Thresholds float [B, N] in place of `weights.threshold`. live: see `live_nodes`."""
        raise TypeError(f"{type(self).__name__} must define relax")

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = exact_twin(draft).weigh(evidence, draft)
        if draft.tree.nodes > 1:
            weights.threshold = self.relax(weights, draft, live_nodes(evidence, draft))
        return weights

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return exact_twin(draft).residual(evidence, draft, weights, node)
