from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules.base import Rule, Weights, at_node, keep_live, live_nodes
from mmspec.core.round.tree import Tree
from mmspec.kernels.law import best_match, law_rows, mass_at
from mmspec.kernels.log_law import Residual
from mmspec.kernels.sibling_thresholds import match_thresholds
from mmspec.methods import method


@method(
    "match",
    domain=("vlm", "image", "video"),
    kind="rule",
    title="target-match",
    exact=True,
    about="a value is accepted where the target draws the same",
    order=4,
)
class TargetMatch(Rule):
    """Accepts a child with the target's probability of its token, given the rejected siblings. Exact for any draft.

    The threshold is p(x) / (1 - p(earlier siblings)); a token that occurs twice among siblings counts once. If all
    children are rejected, the value has the distribution p without their tokens. In a greedy request a child passes if
    it is the argmax (lowest index) of its parent's scores, and the argmax follows the path; no softmax is computed.
    """

    name = "match"
    exact = True
    takes_copies = True
    proven_for = frozenset(
        (kind, drawn)
        for kind in ("categorical", "onehot", "none")
        for drawn in ("without_replacement", "with_replacement", "deterministic", "none")
    )

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        tree, live = draft.tree, live_nodes(evidence, draft)
        if evidence.greedy:
            best, hit = best_match(evidence.scores, draft.value, tree.parent, live)
            return Weights(hit, "descend", extra=best)
        p = law_rows(evidence.scores)
        if tree.nodes == 1:
            return Weights(evidence.scores.new_ones(draft.batch, 1, dtype=p.dtype), "descend", p)
        token = draft.value.clamp(0, p.shape[-1] - 1)
        threshold = match_thresholds(mass_at(p, tree.parent, token), token, _earlier(tree), live)
        return Weights(keep_live(threshold, live), "descend", p)

    def form(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Residual:
        if draft.tree.nodes == 1:
            return Residual("without", weights.p)
        live, column = live_nodes(evidence, draft), torch.arange(draft.tree.nodes, device=node.device)
        child = (draft.tree.parent == node[:, None]) & (column > 0)
        child = child if live is None else child & live
        return Residual("without", weights.p, token=draft.value.clamp(0, weights.p.shape[-1] - 1), remove=child)

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        if not evidence.greedy:
            return super().resample(evidence, draft, weights, verdict, keys)
        verdict.correction = at_node(weights.extra, verdict.node)
        return verdict


def _earlier(tree: Tree) -> Tensor:
    return _static_earlier(tree) if tree.static else _earlier_siblings(tree)


@lru_cache(maxsize=512)
def _static_earlier(tree: Tree) -> Tensor:
    return _earlier_siblings(tree)


def _earlier_siblings(tree: Tree) -> Tensor:
    """Return bool [R, N, N], True where column j is an earlier sibling of row i."""
    drafted = torch.arange(tree.nodes, device=tree.parent.device) > 0
    parent, rank = tree.parent, tree.sibling_rank
    same = (parent[:, :, None] == parent[:, None, :]) & (rank[:, None, :] < rank[:, :, None])
    return same & drafted & drafted[:, None]
