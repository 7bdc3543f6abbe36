"""Static trees go through traversal with everything gathered once; the result is bitwise that of one fan after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.rules import Traversal
from mmspec.core.round.rules.laws import laws_of
from mmspec.core.round.rules.rejection import _weigh
from mmspec.core.round.rules.siblings import sibling_tables_by_depth, tree_layout
from mmspec.core.round.tree import Tree, static_tree
from mmspec.kernels.sequential_rejection import reject_chain, reject_siblings

TREES = {
    "chain": (0, 0, 1, 2, 3),
    "single": (0, 0),
    "star": (0, 0, 0, 0),
    "text": (0, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 10, 10, 12),
    "caterpillar": (0, 0, 0, 0, 1, 1, 1, 4, 7, 8, 9),
    "two chains": (0, 0, 0, 1, 2, 3, 4),
    "late branch": (0, 0, 1, 2, 2, 3),
    "a branch not of the first child": (0, 0, 0, 2, 2, 4, 5, 6),
}


def draft_on(tree: Tree, batch: int, size: int, seed: int, ragged: bool) -> tuple[Draft, Evidence]:
    """Children drawn without replacement from laws that resemble the target's."""
    drawn = torch.Generator().manual_seed(seed)
    inner = sorted(set(tree.parent[0, 1:].tolist()))
    row = torch.tensor([inner.index(node) if node in inner else -1 for node in range(tree.nodes)])
    p = 2 * torch.randn(batch, tree.nodes, size, generator=drawn)
    q = p[:, inner] + torch.randn(batch, len(inner), size, generator=drawn)
    noise = -(-torch.rand(q.shape, generator=drawn).log()).log()
    ranked = (q + noise).argsort(-1, descending=True)
    value = ranked[:, row[tree.parent[0]]].gather(2, tree.sibling_rank[0].expand(batch, -1)[..., None])[..., 0]
    valid = torch.rand(batch, tree.nodes, generator=drawn) < 0.8 if ragged else None
    return Draft(value, tree, Law("without_replacement", row, q), valid), Evidence(p)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("ragged", (False, True))
@pytest.mark.parametrize("batch, size", ((1, 7), (3, 127)))
def test_thresholds_and_residuals_match_a_fan_by_fan_computation(
    name: str, ragged: bool, batch: int, size: int
) -> None:
    tree = static_tree(TREES[name])
    for seed in range(3):
        draft, evidence = draft_on(tree, batch, size, seed, ragged)
        found = Traversal().weigh(evidence, draft)
        plain = _weigh(laws_of(evidence, draft), tree, sibling_tables_by_depth(tree), "post", False)
        assert found.order == plain.order
        for part in ("threshold", "alpha", "beta"):
            assert torch.equal(getattr(found, part), getattr(plain, part)), part


@pytest.mark.parametrize("name", TREES)
def test_a_layout_holds_every_node_once_and_parents_before_children(name: str) -> None:
    tree = static_tree(TREES[name])
    layout = tree_layout(tree)
    order = [0, *layout.child.tolist()]
    assert sorted(order) == list(range(tree.nodes))
    assert layout.place.tolist() == [order.index(node) for node in range(tree.nodes)]
    assert sorted(layout.parent.tolist()) == sorted(set(tree.parent[0, 1:].tolist()))
    assert all(order.index(int(tree.parent[0, n])) < order.index(n) for n in order[1:])
    assert sum(count for step in layout.steps for _, count in step.ranks) == tree.nodes - 1


def one_by_one(p: Tensor, q: Tensor, weight: Tensor, child: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
    found, states = [], []
    for node in range(p.shape[1]):
        here = slice(node, node + 1)
        there = None if drawn is None else [drawn[:, here]]
        (weight,), state = reject_siblings(p[:, here], q[:, here], weight, [child[:, :, here]], there)
        found.append(weight)
        states.append(state)
    return torch.cat(found, 1), torch.cat(states, 2)


@pytest.mark.parametrize("length", (1, 2, 9))
@pytest.mark.parametrize("ragged", (False, True))
def test_a_chain_in_one_step_matches_its_nodes_in_sequence(length: int, ragged: bool) -> None:
    drawn = torch.Generator().manual_seed(length)
    p, q = (torch.randn(4, length, 13, generator=drawn).softmax(-1) for _ in range(2))
    token = torch.randint(13, (4, length, 1), generator=drawn)
    px, qx = p.gather(2, token)[..., 0], q.gather(2, token)[..., 0]
    child = torch.stack((px, qx, qx, torch.ones_like(qx)))
    weight = torch.rand(4, 1, generator=drawn)
    ends = torch.arange(length) < torch.randint(length + 1, (4, 1), generator=drawn) if ragged else None
    found, state = reject_chain(p, q, weight, child, ends)
    wanted, states = one_by_one(p, q, weight, child, ends)
    assert torch.equal(found, wanted) and torch.equal(state, states)
