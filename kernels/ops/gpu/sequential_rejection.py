"""Sequential rejection of a whole tree.

A launch serves all nodes that are ready: a child is ready after the rejection of its earlier siblings, while its later
siblings still wait. Every program first sums up the masses that the launch before left for its node, so that a rank
costs one launch. Scalars and masses alternate between two buffers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import launch, law_arguments, law_at, law_row, span_of, tile_of, wide
from mmspec.kernels.log_law import TINY, LogLaw, RejectionOrder


@triton.jit
def child_at(p_child, p_live, rank, nodes, RAGGED: tl.constexpr):
    """Return a node's child of a rank, and whether it was drawn."""
    child = tl.load(p_child + rank)
    there = child < nodes
    if RAGGED:
        there = there & (tl.load(p_live + child, mask=there, other=0) != 0)
    return tl.minimum(child, nodes - 1), there


@triton.jit(do_not_specialize=["q_rows", "s_child", "nodes", "count", "ranks"])
def mass_left_kernel(
    q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, p_at, p_token, p_child, s_child, p_live, p_node, p_left,
    nodes, count, ranks,
    V: tl.constexpr, Q_LOG: tl.constexpr, Q_PICKED: tl.constexpr, RAGGED: tl.constexpr, WIDE: tl.constexpr,
    RANKS: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Sum the mass of q in a span before each rank, without the tokens of earlier ranks."""
    at, span = tl.program_id(0), tl.program_id(1)
    b, m = tl.cast(at // count, tl.int64), tl.load(p_node + at % count)
    origin = tl.maximum(tl.load(p_at + m), 0)
    q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, origin, Q_LOG, Q_PICKED)
    p_child, p_live, p_token = p_child + b * s_child + m * ranks, p_live + b * nodes, p_token + b * nodes
    r, left = tl.arange(0, RANKS), tl.zeros((RANKS,), dtype=WIDE)
    for start in range(0, SPAN, TILE):
        o = span * SPAN + start + tl.arange(0, TILE)
        share = law_at(q, q_stat, o, o < V, Q_LOG, WIDE)
        for rank in range(1, ranks):
            child, there = child_at(p_child, p_live, rank - 1, nodes, RAGGED)
            share = tl.where((o == tl.load(p_token + child)) & there, 0.0, share)
            left += tl.where(r == rank, tl.sum(share, 0), 0.0)
    out = p_left + ((b * nodes + m) * tl.num_programs(1) + span) * ranks
    tl.store(out + r, left, mask=r < ranks)


@triton.jit
def scale_of(
    p_left, rank, ranks, spans, LEFT: tl.constexpr, WIDE: tl.constexpr, TINY: tl.constexpr, SPANS: tl.constexpr
):
    """Return the mass of q before a rank."""
    left = tl.full((), 1.0, WIDE)
    if LEFT:
        span = tl.arange(0, SPANS)
        total = tl.sum(tl.load(p_left + span * ranks + rank, mask=span < spans, other=0.0), 0)
        left = tl.where(rank == 0, left, tl.where(total < TINY, TINY, total))
    return left


@triton.jit(do_not_specialize=["p_rows", "q_rows", "s_tree", "nodes", "count", "ranks", "step", "per_rank", "spans"])
def reject_kernel(
    p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows,
    p_at, p_px, p_qx, p_child, p_first, p_ranks, s_tree, p_live, p_node, p_left, p_state, p_part, p_out,
    nodes, count, ranks, step, per_rank, spans,
    V: tl.constexpr, P_LOG: tl.constexpr, P_PICKED: tl.constexpr, Q_LOG: tl.constexpr, Q_PICKED: tl.constexpr,
    RAGGED: tl.constexpr, LEFT: tl.constexpr, POST: tl.constexpr, SHARED: tl.constexpr, WIDE: tl.constexpr,
    TINY: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    at, span = tl.program_id(0), tl.program_id(1)
    b, m = tl.cast(at // count, tl.int64), tl.load(p_node + at % count)
    rank = (step - tl.load(p_first + b * s_tree + m)).to(tl.int32)
    most = tl.load(p_ranks + b * s_tree + m).to(tl.int32)
    if (rank >= 0) & (rank <= most):
        node = b * nodes + m
        p_child, p_live = p_child + (b * s_tree + m) * ranks, p_live + b * nodes
        p_left, all_spans = p_left + node * spans * ranks, tl.arange(0, SPANS)
        # the node's scalars before this rank
        a = tl.full((), 1.0, WIDE)
        if POST:
            a = tl.where(m == 0, a, tl.load(p_out + node))
        upper, lower = a, a - a
        if rank > 0:
            old = ((rank - 1) % 2) * 3 * per_rank + node
            a, upper = tl.load(p_state + old), tl.load(p_state + old + per_rank)
            lower = tl.load(p_state + old + 2 * per_rank)
            _, before = child_at(p_child, p_live, rank - 1, nodes, RAGGED)
            if before:
                part = p_part + (((rank - 1) % 2) * per_rank + node) * spans
                mass = tl.sum(tl.load(part + all_spans, mask=all_spans < spans, other=0.0), 0)
                room = 1 - a + mass
                room = tl.where(room < TINY, TINY, room)
                left = scale_of(p_left, rank - 1, ranks, spans, LEFT, WIDE, TINY, SPANS)
                lower = (lower + 1 / left) / room
                a, upper = mass / room, upper / room
        if rank < most:
            child, there = child_at(p_child, p_live, rank, nodes, RAGGED)
            left = scale_of(p_left, rank, ranks, spans, LEFT, WIDE, TINY, SPANS)
            if span == 0:
                new = (rank % 2) * 3 * per_rank + node
                tl.store(p_state + new, a)
                tl.store(p_state + new + per_rank, upper)
                tl.store(p_state + new + 2 * per_rank, lower)
                child_node = b * nodes + child
                px, qx = tl.load(p_px + child_node).to(WIDE), tl.load(p_qx + child_node).to(WIDE)
                share = qx / left
                accept = (upper * px - lower * qx) / tl.where(share < TINY, TINY, share)
                accept = tl.where(accept < 0, 0.0, tl.where(accept > 1, 1.0, accept))
                exists = tl.load(p_child + rank) < nodes
                # the state of a leaf; a node with children writes its own later
                tl.store(p_out + child_node, tl.where(there, accept, 0.0), mask=exists)
                tl.store(p_out + per_rank + child_node, 1.0, mask=exists)
                tl.store(p_out + 2 * per_rank + child_node, 0.0, mask=exists)
            if there:
                p, p_stat = law_row(p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, b, m, P_LOG, P_PICKED)
                origin = tl.maximum(tl.load(p_at + m), 0)
                q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, origin, Q_LOG, Q_PICKED)
                lower += 1 / left
                total = tl.zeros((TILE,), dtype=WIDE)
                for start in range(0, SPAN, TILE):
                    o = span * SPAN + start + tl.arange(0, TILE)
                    kept = upper * law_at(p, p_stat, o, o < V, P_LOG, WIDE)
                    rest = kept - lower * law_at(q, q_stat, o, o < V, Q_LOG, WIDE)
                    total += tl.where(rest <= 0, 0.0, rest)
                tl.store(p_part + ((rank % 2) * per_rank + node) * spans + span, tl.sum(total, 0))
        else:
            if span == 0:
                if not SHARED:  # a node without children looks like a parent here
                    drawn = m < 0
                    for i in range(ranks):
                        _, there = child_at(p_child, p_live, i, nodes, RAGGED)
                        drawn = drawn | there
                    upper = tl.where(drawn, upper, 1.0)
                if POST:
                    tl.store(p_out + node, a)
                else:
                    tl.store(p_out + node, 1.0, mask=m == 0)
                tl.store(p_out + per_rank + node, upper)
                tl.store(p_out + 2 * per_rank + node, lower)


def launch_reject_tree(
    p: Tensor | LogLaw, q: Tensor | LogLaw, row: Tensor, child_p: Tensor, child_q: Tensor, token: Tensor,
    order: RejectionOrder, live: Tensor | None, post: bool, replacement: bool,
) -> Tensor:  # fmt: skip
    of_p, (p_log, p_picked) = law_arguments(p)
    of_q, (q_log, q_picked) = law_arguments(q)
    batch, nodes, size = p.shape
    ranks, shared, left = order.child.shape[2], len(order.child) == 1, order.child.shape[2] > 1 and not replacement
    span = span_of(size, 2 * batch)
    spans, every, row = triton.cdiv(size, span), batch * nodes, row.contiguous()
    flags = token if live is None else live.contiguous()
    stride, new = 0 if shared else nodes, {"dtype": p.dtype, "device": p.device}
    out = (torch.empty if shared else torch.ones)(3, batch, nodes, **new)
    state, part = torch.empty(2, 3, every, **new), torch.empty(2, every, spans, **new)
    before = torch.empty(every, spans, ranks, **new) if left else part
    forms = {"V": size, "Q_LOG": q_log, "Q_PICKED": q_picked, "RAGGED": live is not None, "WIDE": wide(p.dtype)}
    tiles = {"TILE": tile_of(size), "SPAN": span}
    if left:
        launch(
            mass_left_kernel, (batch * len(order.parent), spans), *of_q, row, token.contiguous(), order.child,
            stride * ranks, flags, order.parent, before, nodes, len(order.parent), ranks, RANKS=tile_of(ranks, 1 << 16),
            **forms, **tiles,
        )  # fmt: skip
    given = (row, child_p.contiguous(), child_q.contiguous(), order.child, order.first, order.ranks, stride, flags)
    for step, ready in enumerate(order.steps):
        launch(
            reject_kernel, (batch * len(ready), spans), *of_p, *of_q, *given, ready, before, state, part, out,
            nodes, len(ready), ranks, step, every, spans, P_LOG=p_log, P_PICKED=p_picked, LEFT=left, POST=post,
            SHARED=shared, TINY=TINY, SPANS=tile_of(spans, 1 << 16), **forms, **tiles,
        )  # fmt: skip
    return out
