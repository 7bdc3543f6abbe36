"""Static trees and trees per row describe the same shapes."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.draft import Draft, Law, Verdict, expand_tree, gather_nodes, root_only, run_of
from mmspec.core.round.tree import Tree, chain, chains, dynamic_tree, static_tree

SHAPES = [[0], [0, 0], [0, 0, 1, 2], [0, 0, 0, 0], [0, 0, 1, 0, 1, 3, 2], [0, 0, 0, 1, 1, 2, 2, 3]]


def random_parents(nodes: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [0] + [int(torch.randint(i, (), generator=generator)) for i in range(1, nodes)]


def assert_same(static: Tree, dynamic: Tree, row: int) -> None:
    for name in ("parent", "depth", "sibling_rank", "post_rank", "ancestor"):
        assert torch.equal(getattr(dynamic, name)[row], getattr(static, name)[0]), name
    width = static.max_depth + 1
    assert torch.equal(dynamic.path[row][:, :width], static.path[0])
    assert (dynamic.path[row][:, width:] == torch.arange(static.nodes)[:, None]).all()


@pytest.mark.parametrize("parents", SHAPES, ids=str)
@pytest.mark.parametrize("slack", (0, 2))
def test_both_kinds_agree(parents: list[int], slack: int) -> None:
    static = static_tree(parents)
    assert_same(static, dynamic_tree(torch.tensor([parents]), static.max_depth + slack, static.max_rank + slack), 0)


@pytest.mark.parametrize("nodes", (2, 5, 12, 26))
def test_both_kinds_agree_on_random_trees_of_one_batch(nodes: int) -> None:
    every = [random_parents(nodes, seed) for seed in range(8)]
    statics = [static_tree(parents) for parents in every]
    dynamic = dynamic_tree(torch.tensor(every), max(t.max_depth for t in statics), max(t.max_rank for t in statics))
    assert not dynamic.static and dynamic.levels is None
    for row, static in enumerate(statics):
        assert_same(static, dynamic, row)


@pytest.mark.parametrize("seed", range(6))
def test_tree_arrays_match_their_definitions(seed: int) -> None:
    parents = random_parents(14, seed)
    tree = static_tree(parents)
    depth, rank, post = tree.depth[0].tolist(), tree.sibling_rank[0].tolist(), tree.post_rank[0].tolist()
    assert sorted(post) == list(range(14)) and post[0] == 13
    for node in range(1, 14):
        parent = parents[node]
        assert depth[node] == depth[parent] + 1 and post[node] < post[parent]
        assert rank[node] == sum(parents[other] == parent for other in range(1, node))
        path = [node]
        while path[-1]:
            path.append(parents[path[-1]])
        assert tree.path[0, node].tolist() == path[::-1] + [node] * (tree.max_depth - depth[node])
        assert tree.ancestor[0, node].nonzero()[:, 0].tolist() == sorted(path)
        for other in range(1, node):
            if parents[other] == parent:  # an earlier sibling's whole subtree comes first
                below = tree.ancestor[0, :, node].nonzero()[:, 0].tolist()
                assert all(post[other] < post[i] for i in below)
    assert [(lv.depth, lv.rank) for lv in tree.levels] == sorted({(depth[i], rank[i]) for i in range(1, 14)})
    for level in tree.levels:
        assert all(depth[i] == level.depth and rank[i] == level.rank for i in level.node.tolist())
        assert level.parent.tolist() == [parents[i] for i in level.node.tolist()]
    assert sum(len(level.node) for level in tree.levels) == 13


def test_a_static_tree_is_built_once() -> None:
    assert static_tree([0, 0, 1]) is static_tree((0, 0, 1)) is chain(2)


@pytest.mark.parametrize("parents", ([], [1], [0, 1], [0, 0, 2], [0, -1]))
def test_shapes_that_are_no_tree_are_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match=r"expected parents\[0\] == 0"):
        static_tree(parents)


def test_a_run_is_the_path_and_then_the_correction() -> None:
    tree = static_tree([0, 0, 0, 2])
    draft = Draft(torch.tensor([[9, 1, 2, 3], [9, 4, 5, 6], [9, 7, 8, 9]]), tree, Law("none"))
    node = torch.tensor([3, 1, 0])
    verdict = Verdict("path", node, tree.path[0][node], tree.depth[0][node], correction=torch.tensor([50, 51, 52]))
    run, count = run_of(draft, verdict)
    assert run.tolist() == [[2, 3, 50], [4, 51, 51], [52, 52, 52]] and count.tolist() == [3, 2, 1]


def test_helpers_keep_shapes() -> None:
    tree = chain(2)
    assert expand_tree(tree.path, 5).shape == (5, 3, 3)
    values = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(gather_nodes(values, torch.tensor([[2, 0], [1, 1]]))[0, 0], values[0, 2])
    assert root_only(torch.zeros(3, 4)).value.shape == (3, 1, 4) and root_only(torch.zeros(3)).batch == 3


def test_chains_stand_side_by_side() -> None:
    tree = chains((2, 0, 1))
    assert tree.parent.tolist() == [[0, 0, 1, 3, 4, 4]] and tree.depth.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert tree.roots.tolist() == [0, 3, 4] and (tree.max_depth, tree.max_rank) == (2, 0)
    expected = torch.block_diag(*(torch.ones(n, n).tril() for n in (3, 1, 2))).bool()
    assert torch.equal(tree.ancestor[0], expected)
    assert tree.path.tolist() == [[[0, 0, 0], [0, 1, 1], [0, 1, 2], [3, 3, 3], [4, 4, 4], [4, 5, 5]]]
    assert sorted(tree.post_rank[0].tolist()) == list(range(6))
    with pytest.raises(ValueError, match="at least one length"):
        chains(())
