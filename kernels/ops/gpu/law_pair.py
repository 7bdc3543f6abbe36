"""Statistics of the target's and the drafter's rows in one launch, then sums and look-ups of all rows in another."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.dispatch import wide as wide_of
from mmspec.kernels.gpu.launch import ceil_div, launch, span_of, tile_of, wide
from mmspec.kernels.gpu.law import row_sum, span_stats
from mmspec.kernels.log_law import LogLaw


@triton.jit(do_not_specialize=["p_rows", "q_rows"])
def pair_stats_kernel(
    p_p,
    p_s_batch,
    p_s_row,
    p_rows,
    q_q,
    q_s_batch,
    q_s_row,
    q_rows,
    p_part,
    V: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
):
    row, span = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    rows = p_rows + q_rows
    b, r = row // rows, row % rows
    one, floor = tl.full((), 1.0, WIDE), tl.full((), float("-inf"), WIDE)
    out = p_part + (row * tl.num_programs(1) + span) * 2
    if r < p_rows:
        p_row = p_p + b * p_s_batch + r * p_s_row
        top, _, total = span_stats(p_row, one, floor, span * SPAN, V, False, True, WIDE, TILE, SPAN)
        tl.store(out, top)
        tl.store(out + 1, total)
    else:
        q_row = q_q + b * q_s_batch + (r - p_rows) * q_s_row
        top, _, total = span_stats(q_row, one, floor, span * SPAN, V, False, True, WIDE, TILE, SPAN)
        tl.store(out, top)
        tl.store(out + 1, total)


@triton.jit
def store_stats(p_stats, lse):
    tl.store(p_stats, lse)
    tl.store(p_stats + 1, 1.0)
    tl.store(p_stats + 2, float("-inf"))


@triton.jit(do_not_specialize=["p_rows", "q_rows", "s_parent", "spans"])
def pair_end_kernel(
    p_p,
    p_s_batch,
    p_s_row,
    p_rows,
    q_q,
    q_s_batch,
    q_s_row,
    q_rows,
    p_part,
    p_parent,
    s_parent,
    p_row,
    p_value,
    p_stats,
    q_stats,
    p_child,
    q_child,
    p_token,
    p_clamped,
    p_origin,
    spans,
    V: tl.constexpr,
    WIDE: tl.constexpr,
    SPANS: tl.constexpr,
):
    b, i = tl.cast(tl.program_id(0), tl.int64), tl.cast(tl.program_id(1), tl.int64)
    first = b * (p_rows + q_rows)
    if i < q_rows:
        _, lse = row_sum(p_part, first + p_rows + i, spans, SPANS)
        store_stats(q_stats + (b * q_rows + i) * 3, lse)
    if i < p_rows:
        _, lse = row_sum(p_part, first + i, spans, SPANS)
        node = b * p_rows + i
        store_stats(p_stats + node * 3, lse)
        parent = tl.load(p_parent + b * s_parent + i)
        origin = tl.maximum(tl.load(p_row + parent), 0)
        token = tl.minimum(tl.maximum(tl.load(p_value + node), 0), V - 1)
        _, lse = row_sum(p_part, first + parent, spans, SPANS)
        score = tl.load(p_p + b * p_s_batch + parent * p_s_row + token).to(WIDE)
        tl.store(p_child + node, tl.exp(score - lse))
        _, lse = row_sum(p_part, first + p_rows + origin, spans, SPANS)
        score = tl.load(q_q + b * q_s_batch + origin * q_s_row + token).to(WIDE)
        tl.store(q_child + node, tl.exp(score - lse))
        tl.store(p_token + node, token)
        tl.store(p_clamped + i, tl.maximum(tl.load(p_row + i), 0))
        tl.store(p_origin + node, origin)


def launch_pair(target: Tensor, drafter: Tensor, parent: Tensor, row: Tensor, value: Tensor) -> tuple:
    batch, nodes, size = target.shape
    rows, dtype, device = drafter.shape[1], wide_of(target.dtype), target.device
    span = span_of(size, batch * (nodes + rows) // 2)
    spans = ceil_div(size, span)
    part = torch.empty(batch, nodes + rows, spans, 2, dtype=dtype, device=device)
    shared = (target, *target.stride()[:2], nodes, drafter, *drafter.stride()[:2], rows, part)
    launch(
        pair_stats_kernel,
        (batch * (nodes + rows), spans),
        *shared,
        V=size,
        WIDE=wide(dtype),
        TILE=tile_of(size),
        SPAN=span,
    )
    p_stats, q_stats = (torch.empty(batch, n, 3, dtype=dtype, device=device) for n in (nodes, rows))
    child_p, child_q = torch.empty(2, batch, nodes, dtype=dtype, device=device).unbind()
    token, origin = torch.empty(2, batch, nodes, dtype=torch.int64, device=device).unbind()
    clamped = torch.empty(nodes, dtype=torch.int64, device=device)
    launch(
        pair_end_kernel,
        (batch, max(nodes, rows)),
        *shared,
        parent.contiguous(),
        0 if len(parent) == 1 else nodes,
        row.contiguous(),
        value.contiguous(),
        p_stats,
        q_stats,
        child_p,
        child_q,
        token,
        clamped,
        origin,
        spans,
        V=size,
        WIDE=wide(dtype),
        SPANS=tile_of(spans, 1 << 16),
        num_warps=1,
    )
    return LogLaw(target, p_stats), LogLaw(drafter, q_stats), child_p, child_q, token, clamped, origin
