"""Drafts and keys made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import Rule
from mmspec.core.round.tree import Tree
from mmspec.kernels.sampling import sample_categorical


class Fixed(Keys):
    """Keys that return one number for every test and another for every residual."""

    def __init__(self, rows: int, accept: float, residual: float):
        super().__init__(torch.zeros(rows, dtype=torch.long))
        _FIXED[id(self)] = {Purpose.ACCEPT: accept, Purpose.RESIDUAL: residual}

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        return torch.full((len(self.seeds), *shape), _FIXED[id(self)][purpose], dtype=torch.float64)


_FIXED: dict[int, dict[Purpose, float]] = {}


def drawn(tree: Tree, p: Tensor, q: Tensor | None, how: str, seed: int = 0) -> tuple[Draft, Evidence]:
    """A draft drawn from softmax(q), with p as evidence: float [B, N, V] scores both."""
    rows, nodes, _ = p.shape
    keys = Keys.of(seed, rows)
    uniform = keys.uniform(Purpose.DRAFT, nodes)
    value, valid = torch.zeros(rows, nodes, dtype=torch.long), torch.ones(rows, nodes, dtype=torch.bool)
    law = (p if q is None else q).softmax(-1)
    for level in tree.levels:
        for node, parent in zip(level.node.tolist(), level.parent.tolist(), strict=True):
            share = law[:, parent].clone()
            for earlier in range(1, node):
                if tree.parent[0, earlier] == parent and how != "with_replacement":
                    share.scatter_(1, value[:, earlier, None], 0.0)
            valid[:, node] = valid[:, parent] & (share.sum(-1) > 0)
            value[:, node] = sample_categorical(share, uniform[:, node])
    record = Law(how) if q is None else Law(how, torch.arange(nodes), q)
    return Draft(value, tree, record, valid), Evidence(p)


def round_of(rule: Rule, draft: Draft, evidence: Evidence, keys: Keys) -> Verdict:
    """The three stages, as the loop runs them."""
    rule = rule.rule_for(draft, evidence)
    rule.check(draft)
    weights = rule.weigh(evidence, draft)
    verdict = rule.select(weights, keys.uniform(Purpose.ACCEPT, draft.tree.nodes), draft)
    return rule.resample(evidence, draft, weights, verdict, keys)


def rows_of(draft: Draft, evidence: Evidence, rows: Sequence[int] | Tensor) -> tuple[Draft, Evidence]:
    """Some rows of a batch; static trees."""
    law = Law(draft.law.drawn, draft.law.row, None if draft.law.scores is None else draft.law.scores[rows])
    valid = None if draft.valid is None else draft.valid[rows]
    bad = None if evidence.bad is None else evidence.bad[rows]
    return Draft(draft.value[rows], draft.tree, law, valid), Evidence(evidence.scores[rows], evidence.greedy, bad=bad)
