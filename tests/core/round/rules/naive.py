"""Traversal verification with its residuals written out as vectors, draft by draft: slow, and easy to believe."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence
from mmspec.core.round.rules.base import Rule, Weights, at_node


class NaiveTraversal(Rule):
    """Keeps the residual of every node; static trees. `carry` is the weight of a node after one of its children failed."""

    name = "naive traversal"
    exact = True
    proven_for = frozenset({("categorical", "without_replacement")})

    def carry(self, mass: float, weight: float, share: float) -> float:
        return mass / (mass + 1 - weight) if mass + 1 - weight > 0 else 1.0

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        p, q = evidence.scores.softmax(-1), draft.law.scores.softmax(-1)
        weight = torch.zeros(draft.value.shape, dtype=p.dtype)
        after = p.clone()
        for row in range(draft.batch):
            self._visit(0, 1.0, row, p, q, draft, weight, after)
        return Weights(weight, "post", p=after)

    def _visit(
        self, node: int, a: float, row: int, p: Tensor, q: Tensor, draft: Draft, weight: Tensor, after: Tensor
    ) -> None:
        rest, left = p[row, node].clone(), q[row, draft.law.row[node]].clone()
        for child in (i for i in range(1, draft.tree.nodes) if draft.tree.parent[0, i] == node):
            if not draft.valid[row, child]:
                continue
            token = int(draft.value[row, child])
            share = left / left.sum()
            self._visit(child, min(1.0, float(a * rest[token] / share[token])), row, p, q, draft, weight, after)
            over = (a * rest - share).clamp_min(0)
            mass = float(over.sum())
            a = self.carry(mass, a, float(share[token]))
            rest = over / mass if mass > 1e-12 else p[row, node]
            left[token] = 0
        weight[row, node], after[row, node] = a, rest

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return at_node(weights.p, node)


class FoundInTheWild(NaiveTraversal):
    """The normaliser of a public implementation: Z / (1 - s(x)). Not exact."""

    def carry(self, mass: float, weight: float, share: float) -> float:
        return min(mass / (1 - share), 1.0) if share < 1 else 1.0
