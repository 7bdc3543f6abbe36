"""What an accepted path leaves behind: its slots of the cache moved into place, its hidden states side by side.

Copies only, so both sides of the wrapper give the same bits. Keys and values of every layer move in one launch, in place:
the node at depth r of a path lies in slot a_r >= r behind the committed ones and moves to slot r. Since no a_r is below r, a
slot is read before anything is written to it. Rows whose path is 0, 1, 2, ... are left untouched.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mmspec.kernels.dispatch import INDEX, expect, expect_dense, on_kernels


def move_slots(keys: Tensor, values: Tensor, length: Tensor, source: Tensor) -> None:
    """Slot length[b] + r takes what slot length[b] + source[b, r] holds, for every r, layer and head, in place.

    keys, values: [layers, rows, heads, slots, dim], of one shape but for dim, of any dtype.
    length: int64 [rows].   source: int64 [rows, W], ascending along a path and never below r; r where nothing moves.
    """
    expect("keys", keys, frozenset({keys.dtype}), None, len(length), None, None, None)
    expect("values", values, frozenset({keys.dtype}), *keys.shape[:4], None)
    expect("length", length, INDEX, None)
    expect("source", source, INDEX, len(length), None)
    expect_dense("keys", keys)
    expect_dense("values", values)
    if on_kernels(keys):
        from mmspec.kernels.gpu.slots import launch_move

        return launch_move(keys, values, length, source)
    return move_slots_reference(keys, values, length, source)


def move_slots_reference(keys: Tensor, values: Tensor, length: Tensor, source: Tensor) -> None:
    row = torch.arange(source.shape[0], device=source.device)[:, None]
    taken = length[:, None] + source
    target = length[:, None] + torch.arange(source.shape[1], device=source.device)
    for pool in (keys, values):
        slots = pool.permute(1, 3, 0, 2, 4)
        slots[row, target] = slots[row, taken]


def take_nodes(states: Tensor, node: Tensor) -> Tensor:
    """states [B, N, ...] at node int64 [B, K] -> [B, K, ...]: hidden states of a path, padded as the path is."""
    expect("node", node, INDEX, states.shape[0], None)
    if states.dim() > 2 and on_kernels(states) and states.is_contiguous():
        from mmspec.kernels.gpu.slots import launch_take

        return launch_take(states, node)
    return take_nodes_reference(states, node)


def take_node(states: Tensor, node: Tensor) -> Tensor:
    """states [B, N, ...], or [1, N, ...] where all rows share them, at one node a row, int64 [B] -> [B, ...]."""
    expect("node", node, INDEX, None)
    rows, nodes = states.shape[:2]
    if rows > 1:
        node = node + _first_of_rows(rows, nodes, str(node.device))
    return states.flatten(0, 1).index_select(0, node)


@lru_cache(maxsize=256)
def _first_of_rows(rows: int, nodes: int, device: str) -> Tensor:
    return torch.arange(rows, device=device) * nodes


def take_nodes_reference(states: Tensor, node: Tensor) -> Tensor:
    index = node.reshape(*node.shape, *([1] * (states.dim() - 2))).expand(*node.shape, *states.shape[2:])
    return torch.gather(states, 1, index)
