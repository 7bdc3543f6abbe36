"""Relaxed rules and trees of a shape per row: the kernels weigh, select and leave what the references do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Drawn, Evidence
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import RecursiveRejection, Rule, Traversal
from mmspec.core.round.tree import Tree, chain, dynamic_tree, static_tree
from mmspec.imagegen.rules.cool import CoolSD
from mmspec.imagegen.rules.gsd import GSD
from mmspec.imagegen.rules.lantern import Lantern, LanternPlus, nearest_codes
from mmspec.kernels import dispatch
from tests.core.round.rules.simulation import markov_draft

SIZE = 11
NEAR = nearest_codes(torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0)), 5)
TREE = static_tree([0, 0, 0, 1])
CASES = [
    (Lantern(NEAR, 4, 0.3), chain(2), "without_replacement", False),
    (Lantern(NEAR, 4, 0.3), TREE, "without_replacement", True),
    (LanternPlus(NEAR, 4, 3.0), chain(2), "deterministic", False),
    (GSD(5), TREE, "without_replacement", False),
    (GSD(6), TREE, "deterministic", False),
    (CoolSD(floor=0), chain(2), "without_replacement", False),
    (Traversal(), TREE, "without_replacement", True),
    (RecursiveRejection(), TREE, "without_replacement", True),
]


@pytest.mark.parametrize(
    ("rule", "tree", "drawn", "per_row"), CASES, ids=[f"{case[0].name} {case[1].nodes} {case[2]}" for case in CASES]
)
def test_a_rule_decides_as_on_the_references(
    rule: Rule, tree: Tree, drawn: Drawn, per_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(1)
    p = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64).softmax(-1)
    q = (p.log() + 0.7 * torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)).softmax(-1)
    found = judged(rule, tree, drawn, per_row, p, q)
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    for ours, expected in zip(found, judged(rule, tree, drawn, per_row, p, q), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def judged(rule: Rule, tree: Tree, drawn: Drawn, per_row: bool, p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
    """(thresholds, the accepted nodes, their paths, the laws behind them) of two rows."""
    keys = Keys.of(1, 2)
    draft = markov_draft(tree, torch.zeros(2, dtype=torch.long), q, keys, drawn, q)
    if per_row:
        draft = replace(draft, tree=dynamic_tree(tree.parent.expand(2, -1).clone(), tree.max_depth, tree.max_rank))
    evidence = Evidence(p.log().float()[draft.value])
    weights = rule.weigh(evidence, draft)
    verdict = rule.select(weights, keys.uniform(Purpose.ACCEPT, tree.nodes), draft)
    return weights.threshold, verdict.node, verdict.path, rule.residual(evidence, draft, weights, verdict.node)
