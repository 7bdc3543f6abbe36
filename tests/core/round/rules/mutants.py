"""Rules with one mistake each: the harness must tell them from the real ones."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mmspec.certify.mutants import RuleMutant
from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.rules import BlockVerification, KSeq, Rule, Traversal, Weights
from mmspec.core.round.rules.base import at_node, is_followed
from mmspec.core.round.rules.laws import laws_of
from mmspec.kernels.law import law_of, residual_mass
from mmspec.kernels.sibling_thresholds import law_without


class LateSiblingsFirst(RuleMutant):
    """Siblings are tested in reverse of the order they were drawn in."""

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        tree = draft.tree
        flipped = replace(
            tree, sibling_rank=tree.max_rank - tree.sibling_rank, post_rank=_mirrored(tree.parent[0].tolist())
        )
        return self.rule.select(weights, uniform, replace(draft, tree=flipped))


class AtMost(RuleMutant):
    """u <= S instead of u < S."""

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        return self.rule.select(weights, torch.nextafter(uniform, uniform - 1), draft)


class PrunedByValue(RuleMutant):
    """Drops nodes after having seen what was drawn there."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        return self.rule.weigh(evidence, self._pruned(draft))

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return self.rule.residual(evidence, self._pruned(draft), weights, node)

    def _pruned(self, draft: Draft) -> Draft:
        return replace(draft, valid=draft.valid & (draft.value != 0))


class WeightWithoutFloor(BlockVerification):
    """P as the capped product of all ratios, instead of capping at every step."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        laws = laws_of(evidence, draft)
        ratio = torch.where(laws.live, laws.child_p / laws.child_q, 1.0)[:, 1:]
        weight = torch.nn.functional.pad(ratio, (1, 0), value=1.0).cumprod(-1).clamp_max(1)
        before = weight[:, :-1]
        mass = residual_mass(laws.p[:, :-1], laws.q[:, laws.row[:-1]], before, torch.ones_like(before))
        height = torch.cat((mass / (mass + 1 - before).clamp_min(1e-30), weight[:, -1:]), 1)
        return Weights(height, "post", laws.p, laws.q, weight, is_followed(height, laws.live))


class NoLawMeansOne(Rule):
    """Block verification of a draft without a law that takes q to be 1 everywhere."""

    name, exact, chains_only = "block, q = 1", True, True
    proven_for = frozenset({("onehot", "deterministic")})

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        p = law_of(evidence.scores)
        own = p[:, :-1].gather(2, draft.value[:, 1:, None])[..., 0]
        return Weights(torch.nn.functional.pad(own, (1, 0), value=1.0).cumprod(-1), "post", p)

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        child = draft.tree.parent == node[:, None]
        return law_without(at_node(weights.p, node), draft.value, child & (torch.arange(draft.tree.nodes) > 0))


class WrongDiscount(KSeq):
    """Tests with a rho that the residual does not know of."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = super().weigh(evidence, draft)
        return replace(weights, threshold=weights.threshold * 0.9)


class PrefixOnly(Traversal):
    """Takes the deepest passing node of any branch, not the first in post-order."""

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        deepest = (draft.tree.depth * -draft.tree.nodes + draft.tree.post_rank).argsort(-1).argsort(-1)
        return super().select(weights, uniform, replace(draft, tree=replace(draft.tree, post_rank=deepest)))


def _mirrored(parents: list[int]) -> Tensor:
    """Post-order ranks with every node's children taken last to first."""
    order: list[int] = []

    def visit(node: int) -> None:
        for child in reversed(range(1, len(parents))):
            if parents[child] == node:
                visit(child)
        order.append(node)

    visit(0)
    return torch.tensor([[order.index(node) for node in range(len(parents))]])
