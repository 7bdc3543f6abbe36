"""Batch-invariant products, functions and attention: a row gets the same bits whatever stands beside it.

A matrix product adds up in an order that its library chooses by the number of rows. With a fixed number of rows the order is
fixed too, and rows do not mix, so products are taken in blocks of as many rows, the last one filled with zeros. On some
processors that holds for widths in eights alone; models have such, and prove it. Elementwise functions compute what fills no
whole vector register by another formula, and threads cut long tensors anywhere: here every element is part of a whole vector,
in pieces that one thread computes.

The order in which attention adds up depends on where keys stand, on how many slots there are, and on the number of queries.
So a tree is passed over path by path, with the keys of a path behind those of the prompt as single steps would have written
them. Slots are counted from a row's own first token and filled up to a multiple of `SLOTS`, and queries are taken in blocks
of `BLOCK`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.pool import SlotPool
from mmspec.core.tree import Tree

BLOCK = 8  # rows of a product of a decoding pass: a root and seven drafted values
PROMPT_BLOCK = 64
_VECTORS = 64  # elements of two vectors of bfloat16, which loops take at once
_PIECE = 32768  # elements that torch leaves to one thread


def in_blocks(product: Callable[[Tensor], Tensor], x: Tensor, rows: int) -> Tensor:
    """`product` of x [..., K] -> [..., N], always of `rows` rows [rows, K] at a time."""
    flat = x.reshape(-1, x.shape[-1])
    count = flat.shape[0]
    missing = -count % rows
    if missing:
        flat = torch.cat((flat, flat.new_zeros(missing, flat.shape[1])))
    made = [product(block) for block in flat.split(rows)]
    out = made[0] if len(made) == 1 else torch.cat(made)
    return out[:count].view(*x.shape[:-1], out.shape[-1])


def in_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise function of x, in whole vectors."""
    flat = x.reshape(-1)
    count = flat.shape[0]
    missing = -count % _VECTORS
    if missing:
        flat = torch.cat((flat, flat.new_zeros(missing)))
    made = [function(piece) for piece in flat.split(_PIECE)]
    out = made[0] if len(made) == 1 else torch.cat(made)
    return out[:count].view(x.shape)


AttentionFunction = Callable[..., Tensor]


def expand_grouped_heads(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """All with a head of keys for each of the queries': kernels differ with and without groups.

    count: queries of a row. Where that is one, a model may hand over the queries of a group as if they were as many tokens.
    mask: a bias, [B or 1, 1 or H, count, S].
    """
    batch, heads, rows, size = query.shape
    if rows != count:
        query = query.reshape(batch, heads * rows, count, size)
        if mask is not None and mask.shape[1] > 1:
            mask = mask.reshape(mask.shape[0], heads * rows, count, -1)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
    return query, key, value, mask


def attend_prompt(
    attention: AttentionFunction,
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
    """Stands for `scaled_dot_product_attention`.   Padding is what does not see itself; it stands before or behind a row's
    tokens, and gets zeros."""
    count = query.shape[2]
    query, key, value, mask = expand_grouped_heads(query, key, value, attn_mask, count)
    if mask is None or query.shape[0] == 1 or count != key.shape[2]:
        return attention(query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale)
    out = query.new_zeros(*query.shape[:3], value.shape[-1])
    sees = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    past = torch.ones(count, count, dtype=torch.bool, device=mask.device).tril()
    for row in range(query.shape[0]):
        at = min(row, mask.shape[0] - 1)
        there = sees[at, 0].diagonal().nonzero()[:, 0]
        if not len(there):
            continue
        one, span = slice(row, row + 1), slice(int(there[0]), int(there[-1]) + 1)
        # alone, a row whose tokens see all before them has no mask
        alone = mask.shape[1] == 1 and torch.equal(sees[at, 0, span, span], past[span, span])
        how = {"is_causal": True} if alone else {"attn_mask": mask[at : at + 1, :, span, span]}
        out[one, :, span] = attention(query[one, :, span], key[one, :, span], value[one, :, span], scale=scale, **how)
    return out


SLOTS = 64


@dataclass(frozen=True, slots=True)
class LeafPath:
    """Nodes root..leaf of a draft.   first: place on the path from which on no earlier path holds its nodes."""

    nodes: list[int]
    first: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of a batch whose committed slots begin and end alike.   start, end: of the slots, without padding."""

    rows: slice
    start: int
    end: int
    paths: list[LeafPath]


def row_groups(pool: SlotPool, tree: Tree, batch: int) -> list[RowGroup]:
    """How a pass over a draft is split."""
    if pool.uniform and pool.hidden is None and tree.parent.shape[0] == 1:
        return [RowGroup(slice(0, batch), 0, pool.width, leaf_paths(tree.parent[0].tolist()))]
    # the first slot that is no padding
    starts = [0] * batch if pool.hidden is None else pool.hidden.long().argmin(-1).tolist()
    parents = tree.parent.expand(batch, -1).tolist()
    return [
        RowGroup(slice(row, row + 1), starts[row], pool.lengths[row], leaf_paths(parents[row])) for row in range(batch)
    ]


def leaf_paths(parent: list[int]) -> list[LeafPath]:
    """Paths to all leaves, in the order of the leaves.   parent: of every node, the root its own."""
    leaves = set(range(len(parent))) - set(parent[1:])
    found, done = [], set()
    for leaf in sorted(leaves):
        nodes = [leaf]
        while nodes[-1]:
            nodes.append(parent[nodes[-1]])
        nodes.reverse()
        found.append(LeafPath(nodes, sum(node in done for node in nodes)))
        done.update(nodes)
    return found


def attend_draft(
    split: list[RowGroup],
    nodes: int,
    width: int,
    attention: AttentionFunction,
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

    split: see `row_groups`.   width: slots of layers that keep the draft's keys; others have the same keys for all queries.
    """
    shape = query.shape
    query, key, value, mask = expand_grouped_heads(query, key, value, attn_mask, nodes)
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
    group: RowGroup, key: Tensor, value: Tensor, mask: Tensor | None
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
    attention: AttentionFunction, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float | None
) -> Tensor:
    """Attention of at most `BLOCK` queries [b, H, n, D], computed as for `BLOCK` of them."""
    count = query.shape[2]
    if count < BLOCK:
        query = torch.cat((query, query.new_zeros(*query.shape[:2], BLOCK - count, query.shape[-1])), 2)
        if bias is not None:
            bias = torch.cat((bias, bias[:, :, :1].expand(-1, -1, BLOCK - count, -1)), 2)
    return attention(query, key, value, attn_mask=bias, scale=scale)[:, :, :count]
