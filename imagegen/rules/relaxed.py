"""What relaxed rules share: the exact rule they loosen, whose thresholds they change and whose residual they keep."""

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
    """Base of rules that loosen the exact top-down rule: `relax` puts other thresholds in place of its own. Relaxed: the
    output does not have the target's law.

    What follows a rejection is the exact rule's [p - q]+ unless a rule says otherwise. Of all laws that might follow one,
    where x is accepted with probability f(x), [p - q f]+ brings what is emitted nearest to p ("Annealed Relaxation of
    Speculative Decoding for Faster Autoregressive Image Generation"): sum [q f - p]+ away in total variation.
    - Where f >= min(1, p / q) for every x, as under LANTERN and Cool-SD with floor 1, the two are one law: f = 1 where
      p > q, and elsewhere both are 0.
    - Where some f lie below, as under GSD, they differ, but [p - q]+ is as near as long as the step accepts at least as
      often as the exact rule, sum q f >= sum min(p, q): the mass 1 - sum q f then fits between q f and p wherever p > q.
    - Where f depends on later drafts, as under run-joint, this holds for the first value of a draft alone: the values
      behind one that stands are not drawn from q any more.
    All this is per draft. Among siblings each is judged and followed by what is nearest to what the earlier ones left, and
    another residual may (seldom, and by little) be nearer over all of them.

    Every node is judged by what was drawn down to it and beside it (but for run-joint), so drafts may live on after a
    rejection.
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
