"""Tree attention: splits of the cache in parallel, then a merge. The queries of a key head form a block, [group of
heads x nodes, d], so that every slot is read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.dispatch import INTERPRETED
from mmspec.kernels.gpu.launch import ceil_div, launch, tile_of

SPLIT = 512  # slots per program
SLOTS = 64  # slots that a program loads at once


@triton.jit(do_not_specialize=["hidden_width", "nodes", "s_bits"])
def split_kernel(
    p_query,
    q_row,
    q_head,
    q_node,
    p_key,
    k_row,
    k_head,
    k_slot,
    p_value,
    v_row,
    v_head,
    v_slot,
    p_length,
    p_bits,
    s_bits,
    p_hidden,
    hidden_width,
    p_part,
    p_lse,
    nodes,
    scale,
    KEY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDEN: tl.constexpr,
):
    at, split, block = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(1)
    row, head = at // KEY_HEADS, at % KEY_HEADS
    o = block * QUERIES + tl.arange(0, QUERIES)
    valid = o < GROUP * nodes
    node, d = o % nodes, tl.arange(0, WIDTH)
    q_at = row * q_row + (head * GROUP + o // nodes) * q_head + node * q_node
    query = tl.load(p_query + q_at[:, None] + d[None, :], mask=valid[:, None] & (d < SIZE)[None, :], other=0.0)
    bits = tl.load(p_bits + row * s_bits + node, mask=valid, other=0)
    length = tl.load(p_length + row)
    tree = split == splits - 1
    first = tl.where(tree, length, split * SPLIT)
    last = tl.where(tree, length + nodes, tl.minimum(length, (split + 1) * SPLIT))
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), dtype=tl.float32)
    out = tl.zeros((QUERIES, WIDTH), dtype=tl.float32)
    for start in range(0, last - first, SLOTS):
        slot = first + start + tl.arange(0, SLOTS)
        inside = slot < last
        k_at = row * k_row + head * k_head + slot * k_slot
        key = tl.load(p_key + k_at[None, :] + d[:, None], mask=inside[None, :] & (d < SIZE)[:, None], other=0.0)
        if WIDEN:
            query, key = query.to(tl.float32), key.to(tl.float32)
        score = tl.dot(query, key, input_precision="ieee") * scale
        seen = inside[None, :] & valid[:, None]
        if tree:
            seen = seen & (((bits[:, None] >> (slot - length)[None, :]) & 1) != 0)
        if PADDED:
            gone = tl.load(p_hidden + row * hidden_width + slot, mask=inside & (slot < hidden_width), other=0) != 0
            seen = seen & (gone == 0)[None, :]
        score = tl.where(seen, score, float("-inf"))
        high = tl.maximum(top, tl.max(score, 1))
        base = tl.where(high == float("-inf"), 0.0, high)
        part = tl.exp(score - base[:, None])
        shrink = tl.exp(top - base)
        v_at = row * v_row + head * v_head + slot * v_slot
        value = tl.load(p_value + v_at[:, None] + d[None, :], mask=inside[:, None] & (d < SIZE)[None, :], other=0.0)
        if WIDEN:
            value = value.to(tl.float32)
        out = out * shrink[:, None] + tl.dot(part.to(value.dtype), value, input_precision="ieee")
        total, top = total * shrink + tl.sum(part, 1), high
    rows = tl.num_programs(2) * QUERIES
    to = (at * splits + split) * rows + o
    tl.store(p_part + to[:, None] * WIDTH + d[None, :], out / tl.where(total > 0, total, 1.0)[:, None])
    tl.store(p_lse + to, tl.where(total > 0, top + tl.log(tl.where(total > 0, total, 1.0)), float("-inf")))


@triton.jit(do_not_specialize=["nodes", "rows", "splits"])
def merge_kernel(
    p_part,
    p_lse,
    p_out,
    nodes,
    rows,
    splits,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    at, o = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    d = tl.arange(0, WIDTH)
    top, total = tl.full((), float("-inf"), tl.float32), tl.full((), 0.0, tl.float32)
    out = tl.zeros((WIDTH,), dtype=tl.float32)
    for split in range(splits):
        source = (at * splits + split) * rows + o
        lse = tl.load(p_lse + source)
        high = tl.maximum(top, lse)
        base = tl.where(high == float("-inf"), 0.0, high)
        shrink, share = tl.exp(top - base), tl.exp(lse - base)
        out = out * shrink + tl.load(p_part + source * WIDTH + d) * share
        total, top = total * shrink + share, high
    to = (at * GROUP + o // nodes) * nodes + o % nodes
    tl.store(p_out + to * SIZE + d, out / total, mask=d < SIZE)


def launch_tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    width: int,
    bits: Tensor,
    hidden: Tensor | None,
    scale: float,
) -> Tensor:
    batch, heads, nodes, size = query.shape
    key_heads = keys.shape[1]
    group, wide = heads // key_heads, tile_of(size, 1 << 16)
    queries = tile_of(group * nodes, 64)
    blocks, splits = ceil_div(group * nodes, queries), ceil_div(width, SPLIT) + 1
    rows = blocks * queries
    part = torch.empty(batch * key_heads, splits, rows, wide, dtype=torch.float32, device=query.device)
    lse = torch.empty(batch * key_heads, splits, rows, dtype=torch.float32, device=query.device)
    out = torch.empty(batch, heads, nodes, size, dtype=query.dtype, device=query.device)
    query, hid = (
        (query if query.stride(-1) == 1 else query.contiguous()),
        length if hidden is None else hidden.contiguous(),
    )
    launch(
        split_kernel,
        (batch * key_heads, splits, blocks),
        query,
        *query.stride()[:3],
        keys,
        *keys.stride()[:3],
        values,
        *values.stride()[:3],
        length.contiguous(),
        bits.contiguous(),
        0 if len(bits) == 1 else nodes,
        hid,
        0 if hidden is None else hidden.shape[1],
        part,
        lse,
        nodes,
        scale,
        KEY_HEADS=key_heads,
        GROUP=group,
        SIZE=size,
        PADDED=hidden is not None,
        QUERIES=queries,
        WIDTH=wide,
        SLOTS=SLOTS,
        SPLIT=SPLIT,
        WIDEN=INTERPRETED,  # the interpreter multiplies no matrices of 16 bits
    )
    launch(
        merge_kernel,
        (batch * key_heads, group * nodes),
        part,
        lse,
        out,
        nodes,
        rows,
        splits,
        GROUP=group,
        SIZE=size,
        WIDTH=wide,
    )
    return out
