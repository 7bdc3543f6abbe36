"""Shapes cut to fewer levels, and the layer a drafter's config asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from mmspec.certify.enumeration import random_tables
from mmspec.core.drafting.layer import LayerConfig
from mmspec.core.drafting.shapes import HIT_RATES, DynamicTree, StaticTree, sampled_tree
from tests.core.drafting.test_heap import V, every_tree


@pytest.mark.parametrize("depth", range(1, 7))
def test_a_static_tree_keeps_its_first_levels_and_their_order(depth: int) -> None:
    # 0 - 1, 2; 1 - 3; 2 - 4, 6; 3 - 5; 4 - 7; 7 - 8: levels out of order, so that numbers move
    tree = StaticTree((0, 0, 0, 1, 2, 3, 2, 4, 7), "with_replacement")
    wanted = {
        1: (0, 0, 0),
        2: (0, 0, 0, 1, 2, 2),
        3: (0, 0, 0, 1, 2, 3, 2, 4),
    }.get(depth, tree.parents)
    cut = tree.cut(depth)
    assert cut == StaticTree(wanted, "with_replacement") and cut.longest == min(depth, tree.longest)


@pytest.mark.parametrize(("nodes", "depth", "width"), [(24, 7, 4), (60, 8, 3), (1, 1, 1), (52, 4, 4)])
def test_a_dynamic_tree_keeps_no_more_nodes_than_its_levels_hold(nodes: int, depth: int, width: int) -> None:
    tree = DynamicTree(nodes, depth, width)
    assert tree.cut(depth) is tree and tree.cut(depth + 1) is tree
    for levels in range(1, depth):
        cut = tree.cut(levels)
        assert (cut.longest, cut.width) == (levels, width)
        most = width + (levels - 1) * width**2  # the candidates of so many levels
        assert cut.nodes == min(nodes, most)
    with pytest.raises(ValueError, match=f"nodes: expected at most {width + (depth - 1) * width**2} for depth {depth}"):
        DynamicTree(width + (depth - 1) * width**2 + 1, depth, width)


def test_a_layer_takes_the_sizes_a_config_names_and_those_given_beside() -> None:
    @dataclass
    class Config:
        hidden_size: int = 24
        intermediate_size: int = 40
        num_attention_heads: int = 6
        num_key_value_heads: int = 2
        rope_theta: float = 500.0
        vocab_size: int = 90  # no size of the layer

    assert LayerConfig.of(Config()) == LayerConfig(24, 40, 6, 2, rope_theta=500.0)
    assert LayerConfig.of(Config(), read_size=48) == LayerConfig(24, 40, 6, 2, read_size=48, rope_theta=500.0)
    with pytest.raises(ValueError, match="heads of key-value heads"):
        LayerConfig.of(Config(num_key_value_heads=4))


@pytest.mark.parametrize("depth", (2, 3))
def test_a_tree_that_stops_is_the_tree_cut_at_that_depth(depth: int) -> None:
    q, tree = random_tables(V, 4, 7), DynamicTree(8, 4, 3)
    stopped, never = replace(tree, stop=((depth, 1.0),)), replace(tree, stop=((depth, 1e-9),))
    made = {shape: every_tree(shape, q, greedy=True)[0] for shape in (stopped, tree.cut(depth), never, tree)}
    for one, other in ((stopped, tree.cut(depth)), (never, tree)):
        assert torch.equal(made[one].value, made[other].value)
        assert torch.equal(made[one].tree.parent, made[other].tree.parent)
    assert made[stopped].tree.max_depth == depth < made[never].tree.max_depth


def test_a_stop_is_a_depth_and_a_probability() -> None:
    with pytest.raises(ValueError, match="stop"):
        DynamicTree(stop=((0, 0.3),))


@pytest.mark.parametrize("depth", (1, 2, 3, 7, 9, None))
def test_the_default_tree_of_sampled_requests_has_the_levels_of_its_drafter(depth: int | None) -> None:
    tree, levels = sampled_tree(depth), min(depth or 7, 7)
    assert tree.longest == levels and len(tree.parents) == {1: 5}.get(levels, 15)
    assert (tree == StaticTree()) == (levels == 7)
    assert len(StaticTree().cut(levels).parents) <= len(tree.parents)
    chances = [1.0]
    for node, parent in enumerate(tree.parents[1:], 1):
        chances.append(chances[parent] * HIT_RATES[tree.parents[1:node].count(parent)])
    assert all(
        chance >= other - 1e-12 for chance, other in zip(chances, chances[1:], strict=False)
    )  # prefixes are the best trees
