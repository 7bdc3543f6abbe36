"""Batch-invariant products, elementwise functions and attention: a row's bits do not depend on other rows.

A library chooses the summation order of a matrix product by its number of rows, so products are taken in padded blocks
of a fixed number of rows. On some CPUs this holds only for widths in multiples of eight; each model is checked before
its first strict request. Elementwise functions use another formula for elements that fill no whole vector register, so
every element is part of a whole vector, in pieces that a single thread computes. The summation order of attention
depends on the positions of keys and the numbers of slots and queries. So a tree is processed path by path, with the
keys of a path after those of the prompt. Slots count from a row's first token and are padded to a multiple of `SLOTS`;
queries are taken in blocks of `BLOCK`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.pool import SlotPool
from mmspec.core.round.tree import Tree

BLOCK = 8  # rows of a product in a decoding pass: a root and seven drafted values
BLOCK_ON_CPU = 4  # there four rows cost the time of a single row, and eight 1.7 times as much
PROMPT_BLOCK = 64
_VECTORS = 64  # elements of two bfloat16 vectors, the step of vectorised loops
_PIECE = 32768  # the most elements that torch gives to a single thread


def in_blocks(product: Callable[[Tensor], Tensor], x: Tensor, rows: int) -> Tensor:
    """Map [..., K] to [..., N], always on `rows` rows at a time."""
    flat = x.reshape(-1, x.shape[-1])
    count = flat.shape[0]
    missing = -count % rows
    if missing:
        flat = torch.cat((flat, flat.new_zeros(missing, flat.shape[1])))
    outputs = [product(block) for block in flat.split(rows)]
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return out[:count].view(*x.shape[:-1], out.shape[-1])


def in_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    count = flat.shape[0]
    missing = -count % _VECTORS
    if missing:
        flat = torch.cat((flat, flat.new_zeros(missing)))
    outputs = [function(piece) for piece in flat.split(_PIECE)]
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return out[:count].view(x.shape)


AttentionFunction = Callable[..., Tensor]


def expand_grouped_heads(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Repeat key heads [B, G, S, D] for every query head [B, H, count, D]: kernels differ with groups. For single
    queries, a model may pass the heads of a group as if they were tokens. The bias is [B or 1, 1 or H, count, S]."""
    batch, heads, rows, size = query.shape
    if rows != count:
        query = query.reshape(batch, heads * rows, count, size)
        if mask is not None and mask.shape[1] > 1:
            mask = mask.reshape(mask.shape[0], heads * rows, count, -1)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
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
    """A slot that does not see itself is padding; it lies before or after a row's tokens and gets zeros."""
    count = query.shape[2]
    query, key, value, mask = expand_grouped_heads(query, key, value, attn_mask, count)
    if mask is None or query.shape[0] == 1 or count != key.shape[2]:
        return attention(query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale)
    out = query.new_zeros(*query.shape[:3], value.shape[-1])
    sees = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    past = torch.ones(count, count, dtype=torch.bool, device=mask.device).tril()
    for row in range(query.shape[0]):
        at = min(row, mask.shape[0] - 1)
        tokens = sees[at, 0].diagonal().nonzero()[:, 0]
        if not len(tokens):
            continue
        own, span = slice(row, row + 1), slice(int(tokens[0]), int(tokens[-1]) + 1)
        # a causal row has no mask when it runs alone
        has_causal_mask = mask.shape[1] == 1 and torch.equal(sees[at, 0, span, span], past[span, span])
        form = {"is_causal": True} if has_causal_mask else {"attn_mask": mask[at : at + 1, :, span, span]}
        out[own, :, span] = attention(query[own, :, span], key[own, :, span], value[own, :, span], scale=scale, **form)
    return out


SLOTS = 64


@dataclass(frozen=True, slots=True)
class LeafPath:
    nodes: list[int]
    first: int  # the index from which on no earlier path contains the nodes


@dataclass(frozen=True, slots=True)
class RowGroup:
    rows: slice
    start: int  # the first slot without padding
    end: int  # of the slots
    paths: list[LeafPath]


def row_groups(pool: SlotPool, tree: Tree, batch: int) -> list[RowGroup]:
    if pool.uniform and pool.hidden is None and tree.parent.shape[0] == 1:
        return [RowGroup(slice(0, batch), 0, pool.width, leaf_paths(tree.parent[0].tolist()))]
    # the first slot without padding
    starts = [0] * batch if pool.hidden is None else pool.hidden.long().argmin(-1).tolist()
    parents = tree.parent.expand(batch, -1).tolist()
    return [
        RowGroup(slice(row, row + 1), starts[row], pool.lengths[row], leaf_paths(parents[row])) for row in range(batch)
    ]


def leaf_paths(parent: list[int]) -> list[LeafPath]:
    """In leaf order; the root is its own parent."""
    leaves = set(range(len(parent))) - set(parent[1:])
    paths, done = [], set()
    for leaf in sorted(leaves):
        nodes = [leaf]
        while nodes[-1]:
            nodes.append(parent[nodes[-1]])
        nodes.reverse()
        paths.append(LeafPath(nodes, sum(node in done for node in nodes)))
        done.update(nodes)
    return paths


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
    """Replace `scaled_dot_product_attention` in a pass over a draft of `nodes` nodes; `split` is the result of
    `row_groups`. Queries are [B, H, N, D], keys and values [B, G, S, D]. Layers with `width` slots store the draft's
    keys; in others all queries share the keys. `is_causal` is in the mask, and heads are always repeated; `dropout_p`
    is ignored."""
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
    start, end, rows = group.start, group.end, group.rows
    longest = max(len(path.nodes) for path in group.paths)
    held, total = end - start, -(-(end - start + longest) // SLOTS) * SLOTS
    key, value = key[rows], value[rows]
    room = [
        torch.cat((x[:, :, start:end], x.new_zeros(*x.shape[:2], total - held, x.shape[-1])), 2) for x in (key, value)
    ]
    low = torch.finfo(key.dtype).min
    for path in group.paths:
        slots = [end + node for node in path.nodes]
        for source, copy in zip((key, value), room, strict=True):
            copy[:, :, held : held + len(slots)] = source[:, :, slots]
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
    """Attend with at most `BLOCK` queries [b, H, n, D], padded to `BLOCK`."""
    count = query.shape[2]
    if count < BLOCK:
        query = torch.cat((query, query.new_zeros(*query.shape[:2], BLOCK - count, query.shape[-1])), 2)
        if bias is not None:
            bias = torch.cat((bias, bias[:, :, :1].expand(-1, -1, BLOCK - count, -1)), 2)
    return attention(query, key, value, attn_mask=bias, scale=scale)[:, :, :count]
