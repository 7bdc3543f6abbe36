"""Sequential rejection of a whole tree. A launch serves all nodes that are ready: after the rejection of its earlier
siblings a child is ready, while later siblings still wait. Every program first sums up the masses that the launch
before left for its node, so that a rank costs one launch. Scalars and masses alternate between two buffers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import ceil_div, launch, law_arguments, law_at, law_row, span_of, tile_of, wide
from mmspec.kernels.log_law import TINY, LogLaw, RejectionOrder


@triton.jit
def child_at(p_child, p_live, rank, nodes, RAGGED: tl.constexpr):
    child = tl.load(p_child + rank)
    there = child < nodes
    if RAGGED:
        there = there & (tl.load(p_live + child, mask=there, other=0) != 0)
    return tl.minimum(child, nodes - 1), there


@triton.jit(do_not_specialize=["q_rows", "s_child", "nodes", "count", "ranks"])
def mass_left_kernel(
    q_q,
    q_stats,
    q_row,
    q_s_batch,
    q_s_row,
    q_rows,
    p_at,
    p_token,
    p_child,
    s_child,
    p_live,
    p_node,
    p_left,
    nodes,
    count,
    ranks,
    V: tl.constexpr,
    Q_LOG: tl.constexpr,
    Q_PICKED: tl.constexpr,
    RAGGED: tl.constexpr,
    WIDE: tl.constexpr,
    RANKS: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
):
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
    left = tl.full((), 1.0, WIDE)
    if LEFT:
        span = tl.arange(0, SPANS)
        total = tl.sum(tl.load(p_left + span * ranks + rank, mask=span < spans, other=0.0), 0)
        left = tl.where(rank == 0, left, tl.where(total < TINY, TINY, total))
    return left


@triton.jit(do_not_specialize=["p_rows", "q_rows", "s_tree", "nodes", "count", "ranks", "step", "per_rank", "spans"])
def reject_kernel(
    p_p,
    p_stats,
    p_row,
    p_s_batch,
    p_s_row,
    p_rows,
    q_q,
    q_stats,
    q_row,
    q_s_batch,
    q_s_row,
    q_rows,
    p_at,
    p_px,
    p_qx,
    p_child,
    p_first,
    s_tree,
    p_live,
    p_ready,
    p_left,
    p_state,
    p_part,
    p_out,
    nodes,
    count,
    ranks,
    step,
    per_rank,
    spans,
    V: tl.constexpr,
    P_LOG: tl.constexpr,
    P_PICKED: tl.constexpr,
    Q_LOG: tl.constexpr,
    Q_PICKED: tl.constexpr,
    RAGGED: tl.constexpr,
    LEFT: tl.constexpr,
    POST: tl.constexpr,
    SHARED: tl.constexpr,
    WIDE: tl.constexpr,
    TINY: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    SPANS: tl.constexpr,
):
    at, span = tl.program_id(0), tl.program_id(1)
    b, o_ready = tl.cast(at // count, tl.int64), at % count
    m, p_live = tl.load(p_ready + o_ready), p_live + b * nodes
    p_child = p_child + (b * s_tree + m) * ranks
    if SHARED:  # the columns of a launch, in place of loads that wait for each other
        rank, most = (
            tl.load(p_ready + count + o_ready).to(tl.int32),
            tl.load(p_ready + 2 * count + o_ready).to(tl.int32),
        )
        tried, child = tl.load(p_ready + 3 * count + o_ready), tl.load(p_ready + 4 * count + o_ready)
    else:
        rank, most = (step - tl.load(p_first + b * s_tree + m)).to(tl.int32), ranks
        tried = tl.load(p_child + rank - 1, mask=(rank > 0) & (rank <= ranks), other=nodes)
        child = tl.load(p_child + rank, mask=(rank >= 0) & (rank < ranks), other=nodes)
    was_there, there = tried < nodes, child < nodes
    exists = there
    if RAGGED:
        was_there = was_there & (tl.load(p_live + tried, mask=was_there, other=0) != 0)
        there = there & (tl.load(p_live + child, mask=there, other=0) != 0)
    if (rank >= 0) & (rank <= most):
        # all loads first: the vocabulary's do not wait for the scalars
        node, child_node = b * nodes + m, b * nodes + tl.minimum(child, nodes - 1)
        p, p_stat = law_row(p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, b, m, P_LOG, P_PICKED)
        origin = tl.maximum(tl.load(p_at + m), 0)
        q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, origin, Q_LOG, Q_PICKED)
        o = span * SPAN + tl.arange(0, TILE)
        mass = law_at(p, p_stat, o, (o < V) & there, P_LOG, WIDE)
        share = law_at(q, q_stat, o, (o < V) & there, Q_LOG, WIDE)
        later, other = rank > 0, (rank + 1) % 2
        old, all_spans = p_state + other * 3 * per_rank + node, tl.arange(0, SPANS)
        a, upper = tl.load(old, mask=later, other=1.0), tl.load(old + per_rank, mask=later, other=1.0)
        lower = tl.load(old + 2 * per_rank, mask=later, other=0.0)
        part = p_part + (other * per_rank + node) * spans + all_spans
        left_over = tl.sum(tl.load(part, mask=(all_spans < spans) & was_there, other=0.0), 0)
        p_left = p_left + node * spans * ranks
        left_before = scale_of(p_left, tl.maximum(rank - 1, 0), ranks, spans, LEFT, WIDE, TINY, SPANS)
        left = scale_of(p_left, tl.minimum(rank, ranks - 1), ranks, spans, LEFT, WIDE, TINY, SPANS)
        px, qx = tl.load(p_px + child_node).to(WIDE), tl.load(p_qx + child_node).to(WIDE)
        if POST:
            start = tl.load(p_out + node, mask=(m > 0) & (rank == 0), other=1.0).to(WIDE)
            a, upper = tl.where(later, a, start), tl.where(later, upper, start)
        # the node's scalars behind the rank before
        room = 1 - a + left_over
        room = tl.where(room < TINY, TINY, room)
        lower = tl.where(was_there, (lower + 1 / left_before) / room, lower)
        a, upper = tl.where(was_there, left_over / room, a), tl.where(was_there, upper / room, upper)
        if rank < most:
            if span == 0:
                new = p_state + (rank % 2) * 3 * per_rank + node
                tl.store(new, a)
                tl.store(new + per_rank, upper)
                tl.store(new + 2 * per_rank, lower)
                own = qx / left
                accept = (upper * px - lower * qx) / tl.where(own < TINY, TINY, own)
                accept = tl.where((accept < 0) | (qx == 0), 0.0, tl.where(accept > 1, 1.0, accept))
                # the state of a leaf; a node with children writes its own later
                tl.store(p_out + child_node, tl.where(there, accept, 0.0), mask=exists)
                tl.store(p_out + per_rank + child_node, 1.0, mask=exists)
                tl.store(p_out + 2 * per_rank + child_node, 0.0, mask=exists)
            lower += 1 / left
            rest = upper * mass - lower * share
            total = tl.where(rest <= 0, 0.0, rest)
            for ahead in range(TILE, SPAN, TILE):
                inside = (o + ahead < V) & there
                above = upper * law_at(p, p_stat, o + ahead, inside, P_LOG, WIDE)
                rest = above - lower * law_at(q, q_stat, o + ahead, inside, Q_LOG, WIDE)
                total += tl.where(rest <= 0, 0.0, rest)
            tl.store(p_part + ((rank % 2) * per_rank + node) * spans + span, tl.sum(total, 0))
        else:
            if span == 0:
                if not SHARED:  # a node without children looks like a parent here
                    drawn = m < 0
                    for i in range(ranks):
                        _, known = child_at(p_child, p_live, i, nodes, RAGGED)
                        drawn = drawn | known
                    upper = tl.where(drawn, upper, 1.0)
                if POST:
                    tl.store(p_out + node, a)
                else:
                    tl.store(p_out + node, 1.0, mask=m == 0)
                tl.store(p_out + per_rank + node, upper)
                tl.store(p_out + 2 * per_rank + node, lower)


def launch_reject_tree(
    p: Tensor | LogLaw,
    q: Tensor | LogLaw,
    row: Tensor,
    child_p: Tensor,
    child_q: Tensor,
    token: Tensor,
    order: RejectionOrder,
    live: Tensor | None,
    post: bool,
    replacement: bool,
) -> Tensor:
    of_p, (p_log, p_picked) = law_arguments(p)
    of_q, (q_log, q_picked) = law_arguments(q)
    batch, nodes, size = p.shape
    ranks, left = order.child.shape[2], order.child.shape[2] > 1 and not replacement
    shared = order.steps[0].dim() == 2  # by the form of the steps: a batch of one row may have a tree of its own
    span = span_of(size, 2 * batch)
    spans, every, row = ceil_div(size, span), batch * nodes, row.contiguous()
    flags = token if live is None else live.contiguous()
    stride, new = 0 if shared else nodes, {"dtype": p.dtype, "device": p.device}
    out = (torch.empty if shared else torch.ones)(3, batch, nodes, **new)
    state, part = torch.empty(2, 3, every, **new), torch.empty(2, every, spans, **new)
    before = torch.empty(every, spans, ranks, **new) if left else part
    forms = {"V": size, "Q_LOG": q_log, "Q_PICKED": q_picked, "RAGGED": live is not None, "WIDE": wide(p.dtype)}
    tiles = {"TILE": tile_of(size), "SPAN": span}
    if left:
        launch(
            mass_left_kernel,
            (batch * len(order.parent), spans),
            *of_q,
            row,
            token.contiguous(),
            order.child,
            stride * ranks,
            flags,
            order.parent,
            before,
            nodes,
            len(order.parent),
            ranks,
            RANKS=tile_of(ranks, 1 << 16),
            **forms,
            **tiles,
        )
    inputs = (row, child_p.contiguous(), child_q.contiguous(), order.child, order.first, stride, flags)
    for step, ready in enumerate(order.steps):
        count = ready.shape[-1]
        launch(
            reject_kernel,
            (batch * count, spans),
            *of_p,
            *of_q,
            *inputs,
            ready,
            before,
            state,
            part,
            out,
            nodes,
            count,
            ranks,
            step,
            every,
            spans,
            P_LOG=p_log,
            P_PICKED=p_picked,
            LEFT=left,
            POST=post,
            SHARED=shared,
            TINY=TINY,
            SPANS=tile_of(spans, 1 << 16),
            **forms,
            **tiles,
        )
    return out
