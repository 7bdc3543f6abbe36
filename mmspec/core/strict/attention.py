"""Attention over a draft that gives a query the same bits whatever other queries, masked slots and rows stand beside it.

The order in which weights and values are added up hangs on where keys stand, on how many slots there are, and on the number of
queries. So a tree is passed over path by path, with the keys of a path behind those of the prompt as single steps would
have written them; slots are counted from a row's own first token and filled up to a multiple of `SLOTS`; and queries are taken
in blocks of `BLOCK`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.pool import SlotPool
from mmspec.core.strict.heads import Attention, one_to_one
from mmspec.core.strict.rows import BLOCK
from mmspec.core.tree import Tree

SLOTS = 64


@dataclass(frozen=True, slots=True)
class Path:
    """Nodes root..leaf of a draft.   first: place on the path from which on no earlier path holds its nodes."""

    nodes: list[int]
    first: int


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a batch whose committed slots begin and end alike.   start, end: of the slots, without padding."""

    rows: slice
    start: int
    end: int
    paths: list[Path]


def groups(pool: SlotPool, tree: Tree, batch: int) -> list[Group]:
    """How a pass over a draft is split."""
    if pool.uniform and pool.hidden is None and tree.parent.shape[0] == 1:
        return [Group(slice(0, batch), 0, pool.width, paths(tree.parent[0].tolist()))]
    # the first slot that is no padding
    starts = [0] * batch if pool.hidden is None else pool.hidden.long().argmin(-1).tolist()
    parents = tree.parent.expand(batch, -1).tolist()
    return [Group(slice(row, row + 1), starts[row], pool.lengths[row], paths(parents[row])) for row in range(batch)]


def paths(parent: list[int]) -> list[Path]:
    """Paths to all leaves, in the order of the leaves.   parent: of every node, the root its own."""
    leaves = set(range(len(parent))) - set(parent[1:])
    found, done = [], set()
    for leaf in sorted(leaves):
        nodes = [leaf]
        while nodes[-1]:
            nodes.append(parent[nodes[-1]])
        nodes.reverse()
        found.append(Path(nodes, sum(node in done for node in nodes)))
        done.update(nodes)
    return found


def attend_draft(
    split: list[Group],
    nodes: int,
    width: int,
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Stands for `scaled_dot_product_attention` in a pass over a draft of `nodes`.

    split: see `groups`.   width: slots of layers that keep the draft's keys; others have the same keys for all queries.
    """
    shape = query.shape
    query, key, value, mask = one_to_one(query, key, value, attn_mask, nodes)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    out = query.new_empty(*query.shape[:3], value.shape[-1])
    if key.shape[2] != width:
        for first in range(0, nodes, BLOCK):
            span = slice(first, first + BLOCK)
            own = None if mask is None else mask[:, :, span]
            out[:, :, span] = _block(attention, query[:, :, span], key, value, own, scale)
    else:
        for group in split:
            for at, *seen in _seen(group, key, value, mask):
                out[group.rows, :, at] = _block(attention, query[group.rows][:, :, at], *seen, scale)
    return out.view(*shape[:3], -1)


def _seen(
    group: Group, key: Tensor, value: Tensor, mask: Tensor | None
) -> Iterator[tuple[list[int], Tensor, Tensor, Tensor]]:
    """For every block of queries its nodes, and keys, values [b, H, S, D] and bias [b or 1, 1 or H, n, S] that they see."""
    start, end, rows = group.start, group.end, group.rows
    longest = max(len(path.nodes) for path in group.paths)
    held, total = end - start, -(-(end - start + longest) // SLOTS) * SLOTS
    key, value = key[rows], value[rows]
    room = [torch.cat((one[:, :, start:end], one.new_zeros(*one.shape[:2], total - held, one.shape[-1])), 2)
            for one in (key, value)]  # fmt: skip
    low = torch.finfo(key.dtype).min
    for path in group.paths:
        slots = [end + node for node in path.nodes]
        for one, written in zip((key, value), room, strict=True):
            written[:, :, held : held + len(slots)] = one[:, :, slots]
        for first in range(path.first, len(slots), BLOCK):
            nodes = path.nodes[first : first + BLOCK]
            bias = key.new_full((1, 1, len(nodes), total), low)
            if mask is None:
                bias[..., : held + 1] = 0
            else:
                own = mask[rows if mask.shape[0] > 1 else slice(None)][:, :, nodes]
                bias = bias.expand(*own.shape[:2], -1, -1).clone()
                bias[..., :held] = own[..., start:end]
                bias[..., held : held + len(slots)] = own[..., slots]
            yield nodes, *room, bias


def _block(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float | None
) -> Tensor:
    """Attention of at most `BLOCK` queries [b, H, n, D], computed as for `BLOCK` of them."""
    count = query.shape[2]
    if count < BLOCK:
        query = torch.cat((query, query.new_zeros(*query.shape[:2], BLOCK - count, query.shape[-1])), 2)
        if bias is not None:
            bias = torch.cat((bias, bias[:, :, :1].expand(-1, -1, BLOCK - count, -1)), 2)
    return attention(query, key, value, attn_mask=bias, scale=scale)[:, :, :count]
