"""What the rules of a canvas share: chains side by side, and the value behind the last node that stands in each."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft, gather_nodes
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.sample import law_of, sample_categorical
from mmspec.core.tree import Tree
from mmspec.core.verdict import Verdict


class CanvasRule(Rule):
    """Base of relaxed rules over a `CanvasTarget`. The root of every chain stands, whatever is drawn below it.

    The correction, int64 [B, N], is a value behind the last node down to which a chain stands, and -1 elsewhere. Chain c
    draws from lane c of the round, so a lone chain draws what plain decoding draws.
    """

    exact = False

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        end = chain_ends(draft.tree, verdict.keep)
        if evidence.greedy:
            value = gather_nodes(evidence.scores, end).argmax(-1)
        else:
            value = sample_categorical(self.law(evidence, draft, end), keys.uniform(Purpose.RESIDUAL, end.shape[1]))
        verdict.correction = torch.full_like(draft.value, -1).scatter_(1, end, value)
        return verdict

    def law(self, evidence: Evidence, draft: Draft, end: Tensor) -> Tensor:
        """Unnormalised laws float [B, C, V] of the values behind the nodes `end` int64 [B, C], one of each chain."""
        return law_of(gather_nodes(evidence.scores, end))


def chain_roots(tree: Tree) -> Tensor:
    """int64 [C], the nodes that are their own parents."""
    return tree.parent.new_zeros(1) if tree.roots is None else tree.roots


def is_root(tree: Tree) -> Tensor:
    """bool [R, N]."""
    return tree.parent == torch.arange(tree.nodes, device=tree.parent.device)


def standing(tree: Tree, keep: Tensor) -> Tensor:
    """bool [B, N], nodes that stand together with everything above them. keep: bool [B, N], roots aside."""
    return (tree.ancestor <= (keep | is_root(tree))[:, None, :]).all(-1)


def chain_ends(tree: Tree, keep: Tensor) -> Tensor:
    """int64 [B, C], the last node down to which each chain stands."""
    root = chain_roots(tree)
    chain = torch.searchsorted(root, torch.arange(tree.nodes, device=root.device), right=True) - 1
    count = torch.zeros(len(keep), len(root), dtype=torch.long, device=root.device)
    return root - 1 + count.index_add_(1, chain, standing(tree, keep).long())
