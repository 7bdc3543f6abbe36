"""Selection, against a walk written out node by node."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.tree import dynamic_tree, static_tree
from mmspec.kernels.draft_tree import select_path


def by_hand(passing: list[bool], parents: list[int], post: list[int], valid: list[bool], descend: bool) -> int:
    nodes = range(1, len(parents))
    if descend:
        node = 0
        while True:
            below = [i for i in nodes if parents[i] == node and passing[i] and valid[i]]
            if not below:
                return node
            node = below[0]

    def drawn(node: int) -> bool:
        return node == 0 or (valid[node] and drawn(parents[node]))

    return min([i for i in nodes if passing[i] and drawn(i)] + [0], key=lambda i: post[i])


@pytest.mark.parametrize("nodes", (1, 2, 7, 26, 63))
@pytest.mark.parametrize("descend", (True, False), ids=("descend", "post"))
@pytest.mark.parametrize("ragged", (False, True), ids=("full", "ragged"))
def test_it_is_the_walk(nodes: int, descend: bool, ragged: bool) -> None:
    generator = torch.Generator().manual_seed(nodes)
    for _ in range(4):
        parents = [0] + [int(torch.randint(i, (), generator=generator)) for i in range(1, nodes)]
        tree = static_tree(parents)
        threshold, uniform = torch.rand(2, 40, nodes, generator=generator)
        valid = torch.rand(40, nodes, generator=generator) < 0.8 if ragged else None
        shapes = [tree, dynamic_tree(tree.parent.expand(40, -1).clone(), tree.max_depth, tree.max_rank)]
        found = [
            select_path(threshold, uniform, t.parent, t.ancestor, t.sibling_rank, t.post_rank, valid, descend)
            for t in shapes
        ]
        assert torch.equal(found[0], found[1])
        for row in range(40):
            there = [True] * nodes if valid is None else valid[row].tolist()
            passing = (uniform < threshold)[row].tolist()
            assert int(found[0][row]) == by_hand(passing, parents, tree.post_rank[0].tolist(), there, descend)


@pytest.mark.parametrize("descend", (True, False))
def test_a_threshold_of_0_never_passes_and_a_threshold_of_1_always_does(descend: bool) -> None:
    tree = static_tree([0, 0])
    shape = (tree.parent, tree.ancestor, tree.sibling_rank, tree.post_rank, None, descend)
    assert int(select_path(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2), *shape)) == 0
    assert int(select_path(torch.ones(1, 2), torch.full((1, 2), 1 - 2.0**-53, dtype=torch.float64), *shape)) == 1
    assert int(select_path(torch.full((1, 2), torch.nan), torch.zeros(1, 2), *shape)) == 0
