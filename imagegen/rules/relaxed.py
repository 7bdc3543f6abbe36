"""The base of relaxed rules: the exact rule they loosen, and judging sibling after sibling with whole laws in hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.draft import Draft, Evidence
from mmspec.core.rules import RecursiveRejection, Rule, TargetMatch, TokenWise, Weights
from mmspec.core.rules.base import law_row, live_nodes
from mmspec.core.rules.siblings import gather_children, scatter_children, sibling_table
from mmspec.core.sampling import dense

_MATCH, _TOKEN, _RECURSIVE = TargetMatch(), TokenWise(), RecursiveRejection()


def exact_rule_for(draft: Draft) -> Rule:
    """The exact top-down rule of a draft: token-wise on chains, recursive rejection on trees, target-match where the
    drafted values have no law and q is treated as 1.
    """
    if draft.law.kind != "categorical":
        return _MATCH
    return _RECURSIVE if draft.tree.max_rank else _TOKEN


class RelaxedRule(Rule):
    """Base of rules that loosen the exact top-down rule: `relax` puts other thresholds in place of its own. Relaxed: the
    output does not have the target's law.

    What follows a rejection is the exact rule's [p - q]+ unless a rule says otherwise. Of all laws that might follow one,
    where x is accepted with probability f(x), [p - q f]+ brings what is emitted nearest to p ("Annealed Relaxation of
    Speculative Decoding for Faster Autoregressive Image Generation"): sum [q f - p]+ away in total variation.
    - Where f >= min(1, p / q) for every x, as under LANTERN and Cool-SD with floor 1, the two are one law: f = 1 where
      p > q, and elsewhere both are 0.
    - Where some f lie below, as with groups, they differ, but [p - q]+ is as near as long as the step accepts at least as
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

    def rule_for(self, draft: Draft, evidence: Evidence) -> Rule:
        return _MATCH if evidence.greedy else self

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        """Thresholds float [B, N] in place of `weights.threshold`. live: see `live_nodes`."""
        raise TypeError(f"{type(self).__name__} must define relax")

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = exact_rule_for(draft).weigh(evidence, draft)
        if draft.tree.nodes > 1:
            weights.threshold = self.relax(weights, draft, live_nodes(evidence, draft))
        return weights

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return exact_rule_for(draft).residual(evidence, draft, weights, node)


@dataclass(slots=True)
class Siblings:
    """The children of one sibling rank of n parents.

    token: int64 [B, n].   child: int64 [n] or [B, n], which nodes they are, see `gather_children`.
    p: float [B, n, V], the target's law at the parents.   law: [B, n, V], what is left of it after
    the earlier siblings were rejected.   share: [B, n, V], the law the child was drawn from, None where q is treated as 1.
    exact: [B, n], the exact rule's threshold.
    """

    token: Tensor
    child: Tensor
    p: Tensor
    law: Tensor
    share: Tensor | None
    exact: Tensor

    def of(self, law: Tensor) -> Tensor:
        """law [B, n, V] at the children's own tokens, [B, n]."""
        return law.gather(2, self.token[..., None])[..., 0]

    def own_share(self) -> Tensor:
        """float [B, n], s(x), or ones."""
        return torch.ones_like(self.exact) if self.share is None else self.of(self.share)


def siblingwise(
    weights: Weights, draft: Draft, live: Tensor | None, ratio: Callable[[Siblings], Tensor],
    reject: Callable[[Siblings], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Judges every sibling rank at all parents at once.

    weights: the exact rule's.   live: bool [B, N] or None.   ratio(siblings): float [B, n].
    reject(siblings): the law [B, n, V] that the rejection of these children leaves; None for [law - share]+, which is then
    worked out only for parents with another child.
    Returns (ratios [B, N], 0 at nodes that do not count; the laws [B, N, V] that `reject` leaves behind every node).
    """
    tree, p, fan = draft.tree, dense(weights.p), sibling_table(draft.tree)
    token = draft.value.clamp(0, p.shape[-1] - 1)
    live = torch.ones_like(token, dtype=torch.bool) if live is None else live
    exact = weights.threshold
    if not tree.static:  # the last column stands for the children a parent lacks
        token, live, exact = (pad(t, (0, 1)) for t in (token, live, exact))
    found = torch.zeros_like(exact)
    chain = tree.static and not tree.max_rank  # whose parents lie in order
    parents = law = p[:, :-1] if chain else p.index_select(1, fan.node)
    share = None
    if draft.law.kind == "categorical":
        share = dense(weights.q.index_select(1, law_row(draft)[fan.node]))
    tried: list[Tensor] = []
    for rank, child in enumerate(fan.child):
        count = child.shape[-1]
        siblings = Siblings(gather_children(token, child), child, parents[:, :count], law[:, :count],
                    None if share is None else share[:, :count], gather_children(exact, child))  # fmt: skip
        drawn = gather_children(live, child)
        if share is None:  # a token that stands twice among siblings counts once
            for earlier in tried:
                drawn = drawn & (siblings.token != earlier[:, :count])
            tried.append(torch.where(drawn, siblings.token, -1))
        scatter_children(found, child, torch.where(drawn, ratio(siblings), 0.0))
        if reject is None and rank + 1 == len(fan.child):
            break
        after = torch.where(drawn[..., None], (reject or subtract_share)(siblings), siblings.law)
        law = torch.cat((after, law[:, count:]), 1)
        if share is not None:
            share = torch.cat((_share_after(siblings, drawn), share[:, count:]), 1)
    return found[:, : tree.nodes], p if reject is None else p.index_copy(1, fan.node, law)


def subtract_share(siblings: Siblings) -> Tensor:
    """[law - share]+ normalised, the target's law where that is empty. One-hot shares take their token away."""
    if siblings.share is None:
        rest = siblings.law.scatter(2, siblings.token[..., None], 0.0)
    else:
        rest = (siblings.law - siblings.share).clamp_min_(0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, siblings.p)


def _share_after(siblings: Siblings, drawn: Tensor) -> Tensor:
    """The share of the next sibling: what was tried is gone, the rest is scaled up."""
    rest = siblings.share.scatter(
        2, siblings.token[..., None], torch.where(drawn, 0.0, siblings.own_share())[..., None]
    )
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, rest)
