"""A drafted tree over a slot cache: the visible slots of its nodes, the accepted node, and the slots of its path.

Kernel and reference give the same bits. A threshold of NaN or 0 passes nothing; a threshold of 1 passes everything.
Uniforms may be float64 while thresholds are float32; they are compared in float64."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from mmspec.kernels.dispatch import BOOL, INDEX, WIDE, expect, expect_dense, expect_rows, on_kernels


def tree_bias(ancestor: Tensor, length: Tensor, width: int, uniform: bool, hidden: Tensor | None, dtype: torch.dtype):
    """Return the additive attention bias [B or 1, 1, N, width + M]: 0 for visible slots, the lowest float for others.
    `ancestor` bool [R, N, M] is True where query node i sees drafted node j, which is in slot length[b] + j; `length`
    int64 [B]. On the host, `width` is the maximum of `length` and `uniform` whether all are equal. `hidden` bool [B, P]
    marks committed slots that are never visible (left padding)."""
    low = torch.finfo(dtype).min
    queries, nodes = ancestor.shape[-2:]
    zero = torch.zeros((), dtype=dtype, device=length.device)
    block = torch.where(ancestor, zero, low)
    if uniform and hidden is None:
        return torch.nn.functional.pad(block, (width, 0))[:, None]
    if uniform:
        rows = max(block.shape[0], 1 if hidden is None else hidden.shape[0])
        bias = block.new_zeros(rows, queries, width + nodes)
        bias[:, :, width:] = block
    else:
        # in rows of a multiple of 8 values, since efficient attention on a GPU copies any other mask in every layer
        slot = torch.arange(-(-(width + nodes) // 8) * 8, device=length.device)
        bias = torch.where(slot < length[:, None], zero, low)[:, None, :].repeat(1, queries, 1)
        at = (length[:, None] + torch.arange(nodes, device=length.device))[:, None, :].expand(-1, queries, -1)
        bias.scatter_(2, at, block.expand(length.shape[0], -1, -1))
    if hidden is not None:
        bias[:, :, : hidden.shape[1]].masked_fill_(hidden[:, None, :], low)
    return bias[:, None, :, : width + nodes]


def select_path(
    threshold: Tensor,
    uniform: Tensor,
    parent: Tensor,
    ancestor: Tensor,
    sibling_rank: Tensor,
    post_rank: Tensor,
    valid: Tensor | None,
    descend: bool,
) -> Tensor:
    """Return the accepted node of each row, int64 [B]; the root (node 0) if nothing else passes. Node i passes when
    uniform < threshold, both float [B, N], so a threshold of 0 never passes. Parents and ranks are int64 [R, N], R in
    {1, B}; `ancestor` is bool [R, N, N], own column included; `valid` is bool [B, N]. With `descend` it walks down,
    each time to the first passing sibling (token-wise and recursive rules). Otherwise it takes the first passing node
    in post-order (block and traversal verification)."""
    expect("threshold", threshold, WIDE, None, None)
    batch, nodes = threshold.shape
    expect("uniform", uniform, WIDE, batch, nodes)
    expect_rows("ancestor", ancestor, batch, nodes, nodes)
    if valid is not None:
        expect("valid", valid, BOOL, batch, nodes)
    if on_kernels(threshold):
        from mmspec.kernels.gpu.draft_tree import launch_select

        for name, ints in (("parent", parent), ("sibling_rank", sibling_rank), ("post_rank", post_rank)):
            expect(name, ints, INDEX, ancestor.shape[0], nodes)
        return launch_select(threshold, uniform, parent, ancestor, sibling_rank, post_rank, valid, descend)[0]
    return select_path_reference(threshold, uniform, parent, ancestor, sibling_rank, post_rank, valid, descend)


def accepted_path(
    threshold: Tensor,
    uniform: Tensor,
    shape: Sequence[Tensor],
    valid: Tensor | None,
    descend: bool,
    path: Tensor,
    depth: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the node of `select_path` int64 [B], its path [B, D + 1] and its depth [B], in a launch where kernels run.
    `shape` holds parents, ancestors, sibling ranks and post-order ranks; `path` int64 [R, N, D + 1] and `depth` int64
    [R, N] are those of every node."""
    if not on_kernels(threshold):
        node = select_path(threshold, uniform, *shape, valid, descend)
        return node, take_node(path, node), take_node(depth, node)
    from mmspec.kernels.gpu.draft_tree import launch_select

    expect("uniform", uniform, WIDE, *threshold.shape)
    expect_rows("path", path, *threshold.shape, None)
    return launch_select(threshold, uniform, *shape, valid, descend, path, depth)


def select_path_reference(
    threshold: Tensor,
    uniform: Tensor,
    parent: Tensor,
    ancestor: Tensor,
    sibling_rank: Tensor,
    post_rank: Tensor,
    valid: Tensor | None,
    descend: bool,
) -> Tensor:
    batch, nodes = threshold.shape
    passing = uniform < threshold
    if valid is not None:
        passing = passing & valid
    if descend:
        # an earlier sibling that passes hides later siblings
        ancestor, parent, rank = (t.expand(batch, *t.shape[1:]) for t in (ancestor, parent, sibling_rank))
        key = torch.where(passing, rank, nodes)
        first = key.new_full((batch, nodes), nodes).scatter_reduce_(1, parent[:, 1:], key[:, 1:], "amin")
        chosen = passing & (first.gather(1, parent) == rank)
        chosen[:, 0] = True
        candidate = (ancestor <= chosen[:, None, :]).all(-1)
    else:
        candidate = passing
        if valid is not None:
            candidate = candidate & (ancestor <= _below_root(valid)[:, None, :]).all(-1)
    candidate = candidate | (torch.arange(nodes, device=threshold.device) == 0)
    return torch.where(candidate, post_rank, nodes).argmin(-1)


def _below_root(valid: Tensor) -> Tensor:
    return valid | (torch.arange(valid.shape[1], device=valid.device) == 0)


def move_slots(keys: Tensor, values: Tensor, length: Tensor, source: Tensor) -> None:
    """Copy slot length[b] + source[b, r] to slot length[b] + r for every r, layer and head, in place; rows whose path
    is 0, 1, 2, ... stay untouched. Keys and values are [layers, rows, heads, slots, dim], `length` int64 [rows];
    `source` int64 [rows, W] is ascending along a path and r where nothing moves. It is never below r, so each slot is
    read before it is written."""
    expect("keys", keys, frozenset({keys.dtype}), None, len(length), None, None, None)
    expect("values", values, frozenset({keys.dtype}), *keys.shape[:4], None)
    expect("length", length, INDEX, None)
    expect("source", source, INDEX, len(length), None)
    expect_dense("keys", keys)
    expect_dense("values", values)
    if on_kernels(keys):
        from mmspec.kernels.gpu.draft_tree import launch_move

        return launch_move(keys, values, length, source)
    return move_slots_reference(keys, values, length, source)


def move_slots_reference(keys: Tensor, values: Tensor, length: Tensor, source: Tensor) -> None:
    row = torch.arange(source.shape[0], device=source.device)[:, None]
    origin = length[:, None] + source
    target = length[:, None] + torch.arange(source.shape[1], device=source.device)
    for pool in (keys, values):
        slots = pool.permute(1, 3, 0, 2, 4)
        slots[row, target] = slots[row, origin]


def take_nodes(states: Tensor, node: Tensor) -> Tensor:
    """Return states [B, N, ...] at `node` int64 [B, K], [B, K, ...]: the hidden states of a path, padded like the path."""
    expect("node", node, INDEX, states.shape[0], None)
    if states.dim() > 2 and on_kernels(states) and states.is_contiguous():
        from mmspec.kernels.gpu.draft_tree import launch_take

        return launch_take(states, node)
    return take_nodes_reference(states, node)


def take_node(states: Tensor, node: Tensor) -> Tensor:
    """Return states [B, N, ...], or shared states [1, N, ...], at a node per row, int64 [B] -> [B, ...]."""
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
