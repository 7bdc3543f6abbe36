"""Thresholds of chains: token by token in a launch, block verification in two, the masses by spans and the heights by rows.

In block verification every program computes the walk of the prefix weights anew, which costs less than a launch.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import ceil_div, launch, law_arguments, law_at, law_row, span_of, tile_of, wide
from mmspec.kernels.log_law import TINY, LogLaw


@triton.jit
def larger(a, b):
    return tl.where((a > b) | (a != a), a, b)  # propagates NaN


@triton.jit
def prefix_weights(p_child, q_child, p_live, nodes, i, RAGGED: tl.constexpr, TINY: tl.constexpr):
    """Return P of the nodes i of a row whose first entries are given."""
    inner = (i > 0) & (i < nodes)
    share = tl.load(q_child + i, mask=inner, other=1.0)
    ratio = tl.load(p_child + i, mask=inner, other=1.0) / tl.where(share < TINY, TINY, share)
    ratio = tl.where(share == 0, 0.0, ratio)  # a value that q cannot draw
    if RAGGED:
        ratio = tl.where(tl.load(p_live + i, mask=inner, other=0) != 0, ratio, 1.0)
    walk = tl.cumsum(tl.log(ratio), 0)
    return tl.exp(walk - tl.associative_scan(walk, 0, larger))


@triton.jit(do_not_specialize=["p_rows", "q_rows", "nodes"])
def block_mass_kernel(
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
    p_child,
    q_child,
    p_at,
    p_live,
    p_part,
    nodes,
    V: tl.constexpr,
    P_LOG: tl.constexpr,
    P_PICKED: tl.constexpr,
    Q_LOG: tl.constexpr,
    Q_PICKED: tl.constexpr,
    RAGGED: tl.constexpr,
    NODES: tl.constexpr,
    WIDE: tl.constexpr,
    TINY: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
):
    count = nodes - 1
    at, span, i = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1), tl.arange(0, NODES)
    b, m = at // count, at % count
    p, p_stat = law_row(p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, b, m, P_LOG, P_PICKED)
    origin = tl.maximum(tl.load(p_at + m), 0)
    q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, origin, Q_LOG, Q_PICKED)
    first = b * nodes
    weights = prefix_weights(p_child + first, q_child + first, p_live + first, nodes, i, RAGGED, TINY)
    weight = tl.sum(tl.where(i == m, weights, 0.0), 0).to(WIDE)
    total = tl.zeros((TILE,), dtype=WIDE)
    for start in range(0, SPAN, TILE):
        o = span * SPAN + start + tl.arange(0, TILE)
        rest = weight * law_at(p, p_stat, o, o < V, P_LOG, WIDE) - law_at(q, q_stat, o, o < V, Q_LOG, WIDE)
        total += tl.where(rest <= 0, 0.0, rest)  # propagates NaN
    tl.store(p_part + at * tl.num_programs(1) + span, tl.sum(total, 0))


@triton.jit(do_not_specialize=["nodes", "spans"])
def heights_kernel(
    p_child,
    q_child,
    p_live,
    p_part,
    p_height,
    p_weight,
    p_followed,
    nodes,
    spans,
    RAGGED: tl.constexpr,
    TINY: tl.constexpr,
    NODES: tl.constexpr,
    SPANS: tl.constexpr,
):
    b = tl.cast(tl.program_id(0), tl.int64)
    i, span, first = tl.arange(0, NODES), tl.arange(0, SPANS), b * nodes
    weight = prefix_weights(p_child + first, q_child + first, p_live + first, nodes, i, RAGGED, TINY)
    inner = i < nodes - 1
    part = p_part + (b * (nodes - 1) + i)[:, None] * spans + span[None, :]
    mass = tl.sum(tl.load(part, mask=inner[:, None] & (span < spans)[None, :], other=0.0), 1)
    room = mass + (1 - weight)
    height = tl.where(room == 0, 1.0, mass / tl.where(room == 0, 1.0, room))
    if RAGGED:
        inner = inner & (tl.load(p_live + first + i + 1, mask=inner, other=0) != 0)
    height = tl.where(inner, height, weight)
    if RAGGED:
        height = tl.where(tl.load(p_live + first + i, mask=i < nodes, other=0) != 0, height, 0.0)
    tl.store(p_height + first + i, height, mask=i < nodes)
    tl.store(p_weight + first + i, weight, mask=i < nodes)
    tl.store(p_followed + first + i, tl.where(inner, 1.0, 0.0).to(weight.dtype), mask=i < nodes)


@triton.jit(do_not_specialize=["nodes"])
def token_kernel(
    p_child,
    q_child,
    p_live,
    p_threshold,
    p_one,
    p_followed,
    nodes,
    RAGGED: tl.constexpr,
    TINY: tl.constexpr,
    NODES: tl.constexpr,
):
    i, first = tl.arange(0, NODES), tl.cast(tl.program_id(0), tl.int64) * nodes
    inside = i < nodes
    share = tl.load(q_child + first + i, mask=inside, other=1.0)
    threshold = tl.load(p_child + first + i, mask=inside, other=1.0) / tl.where(share < TINY, TINY, share)
    threshold = tl.where(share == 0, 0.0, tl.where(threshold > 1, 1.0, threshold))
    follows = i < nodes - 1
    if RAGGED:
        threshold = tl.where(tl.load(p_live + first + i, mask=inside, other=0) != 0, threshold, 0.0)
        follows = follows & (tl.load(p_live + first + i + 1, mask=follows, other=0) != 0)
    tl.store(p_threshold + first + i, threshold, mask=inside)
    tl.store(p_one + first + i, 1.0, mask=inside)
    tl.store(p_followed + first + i, tl.where(follows, 1.0, 0.0), mask=inside)


def launch_token(child_p: Tensor, child_q: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    batch, nodes = child_p.shape
    threshold, one, followed = child_p.new_empty(3, batch, nodes).unbind()
    launch(
        token_kernel,
        (batch,),
        child_p.contiguous(),
        child_q.contiguous(),
        child_p if live is None else live.contiguous(),
        threshold,
        one,
        followed,
        nodes,
        RAGGED=live is not None,
        TINY=TINY,
        NODES=tile_of(nodes, 1 << 16),
        num_warps=1,
    )
    return threshold, one, followed


def launch_block(
    child_p: Tensor, child_q: Tensor, p: Tensor | LogLaw, q: Tensor | LogLaw, row: Tensor, live: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    of_p, (p_log, p_picked) = law_arguments(p)
    of_q, (q_log, q_picked) = law_arguments(q)
    batch, nodes, size = p.shape
    child_p, child_q = child_p.contiguous(), child_q.contiguous()
    span = span_of(size, batch * nodes)
    spans = ceil_div(size, span)
    part = child_p.new_empty(batch, nodes - 1, spans)
    height, weight, followed = child_p.new_empty(3, batch, nodes).unbind()
    live = None if live is None else live.contiguous()
    shared, rest = (child_p, child_q), {"RAGGED": live is not None, "TINY": TINY, "NODES": tile_of(nodes, 1 << 16)}
    flags = child_p if live is None else live
    launch(
        block_mass_kernel,
        (batch * (nodes - 1), spans),
        *of_p,
        *of_q,
        *shared,
        row.contiguous(),
        flags,
        part,
        nodes,
        V=size,
        P_LOG=p_log,
        P_PICKED=p_picked,
        Q_LOG=q_log,
        Q_PICKED=q_picked,
        WIDE=wide(p.dtype),
        TILE=tile_of(size),
        SPAN=span,
        **rest,
    )
    launch(
        heights_kernel,
        (batch,),
        *shared,
        flags,
        part,
        height,
        weight,
        followed,
        nodes,
        spans,
        SPANS=tile_of(spans, 1 << 16),
        **rest,
    )
    return height, weight, followed
