"""Masks of windows and chunks over a drafted tree: what each node sees is what a sequence of its own path would see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.layers.layer_plan import LayerPlan, LayerSpec, attention_masks, narrow_bias
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.tree import Tree
from tests.vlm.drafts import random_tree

FULL, WINDOW, CHUNK = (
    LayerSpec("full"),
    LayerSpec("window", 5, "sliding_window"),
    LayerSpec("chunk", 6, "chunk", chunked=True),
)
TYPES = {"full_attention": FULL, "sliding_attention": WINDOW, "chunked_attention": CHUNK}
MIXED = LayerPlan(tuple(TYPES.values()), tuple(TYPES))


def pool_of(lengths: list[int], padding: list[int]) -> SlotPool:
    pool = SlotPool(1, 4)
    pool.write(0, torch.zeros(len(lengths), 1, 1, 2), torch.zeros(len(lengths), 1, 1, 2))
    pool.advance(lengths)
    if any(padding):
        pool.hidden = torch.arange(max(padding)) < torch.tensor(padding)[:, None]
    return pool


def expected(layer: LayerSpec, row: int, node: int, tree: Tree, pool: SlotPool, padding: int) -> set[int]:
    """Slots that a node sees, from the definition: the tokens of its own sequence, counted without padding."""
    length = pool.lengths[row]
    sequence = list(range(padding, length)) + [length + n for n in path_of(tree, row, node)]
    place = len(sequence) - 1
    near = {
        None: lambda k: True,
        False: lambda k: place - k < layer.width,
        True: lambda k: place // layer.width == k // layer.width,
    }[None if layer.width is None else layer.chunked]
    return {slot for k, slot in enumerate(sequence) if near(k)}


def path_of(tree: Tree, row: int, node: int) -> list[int]:
    found = [node]
    while found[0]:
        found.insert(0, int(tree.parent[row, found[0]]))
    return found


def seen(bias: Tensor, row: int, node: int) -> set[int]:
    return set((bias[min(row, len(bias) - 1), 0, node] == 0).nonzero()[:, 0].tolist())


@pytest.mark.parametrize(
    ("lengths", "padding"), (([9, 9], [0, 0]), ([11, 4], [0, 0]), ([12, 8, 10], [3, 7, 0]), ([2], [1]))
)
def test_nodes_see_their_own_sequence_through_windows_and_chunks(lengths: list[int], padding: list[int]) -> None:
    tree = random_tree(len(lengths), 9, torch.Generator().manual_seed(len(lengths)))
    pool = pool_of(lengths, padding)
    made = attention_masks(MIXED, pool, tree.ancestor, tree.depth, tree.max_depth, torch.float32)
    for name, layer in TYPES.items():
        for row in range(len(lengths)):
            for node in range(9):
                assert seen(made[name], row, node) == expected(layer, row, node, tree, pool, padding[row]), (
                    name,
                    row,
                    node,
                )
    assert made["linear_attention"] is None


def test_positions_by_slot_instead_of_depth_are_wrong() -> None:
    """The mutant that counts a drafted node where it lies: siblings would push each other out of the window."""
    tree = random_tree(1, 9, torch.Generator().manual_seed(1))
    pool = pool_of([6], [0])
    full = pool.bias(tree.ancestor, torch.float32)
    wrong = narrow_bias(full, pool, torch.arange(9)[None], WINDOW)
    assert any(seen(wrong, 0, node) != expected(WINDOW, 0, node, tree, pool, 0) for node in range(9))


def test_decoders_of_one_kind_of_layer_get_one_tensor_and_idle_windows_cost_nothing() -> None:
    tree, pool = random_tree(1, 4, torch.Generator().manual_seed(0)), pool_of([9], [0])
    ask = (pool, tree.ancestor, tree.depth, tree.max_depth, torch.float32)
    alone = attention_masks(LayerPlan((WINDOW,) * 2, ("sliding_attention",) * 2), *ask)
    assert torch.equal(alone, attention_masks(MIXED, *ask)["sliding_attention"])
    assert torch.equal(attention_masks(LayerPlan((FULL,) * 2), *ask), pool.bias(tree.ancestor, torch.float32))
    wide = LayerPlan((FULL, LayerSpec("window", 64, "sliding_window")), ("full_attention", "sliding_attention"))
    idle = attention_masks(wide, *ask)
    assert idle["full_attention"] is idle["sliding_attention"]
    one = torch.ones(1, 1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.long), 0, torch.float32
    assert attention_masks(wide, pool, *one) is None and attention_masks(MIXED, pool, *one) is not None
