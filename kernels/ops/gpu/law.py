"""Look-ups in distributions, dense distributions, row statistics and greedy matches.

Spans of the vocabulary run in parallel, followed by a small program per row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.dispatch import wide as wide_of
from mmspec.kernels.gpu.launch import ceil_div, launch, law_arguments, law_at, law_row, span_of, tile_of, wide
from mmspec.kernels.log_law import LogLaw


@triton.jit(do_not_specialize=["nodes", "rows"])
def mass_at_kernel(
    p_law,
    p_stats,
    p_row,
    s_batch,
    s_row,
    rows,
    p_at,
    s_at,
    p_token,
    s_token,
    p_out,
    nodes,
    V: tl.constexpr,
    LOG: tl.constexpr,
    PICKED: tl.constexpr,
    WIDE: tl.constexpr,
    NODES: tl.constexpr,
):
    b = tl.cast(tl.program_id(0), tl.int64)
    node = tl.arange(0, NODES)
    inside = node < nodes
    m = tl.maximum(tl.load(p_at + b * s_at + node, mask=inside, other=0), 0)
    token = tl.minimum(tl.maximum(tl.load(p_token + b * s_token + node, mask=inside, other=0), 0), V - 1)
    r = tl.load(p_row + m, mask=inside, other=0) if PICKED else m
    score = tl.load(p_law + b * s_batch + r * s_row + token, mask=inside, other=0.0).to(WIDE)
    if LOG:
        stats = p_stats + (b * rows + r) * 3
        score = score * tl.load(stats + 1, mask=inside, other=1.0)
        mass = tl.exp(score - tl.load(stats, mask=inside, other=0.0))
        mass = tl.where(score < tl.load(stats + 2, mask=inside, other=float("-inf")), 0.0 * mass, mass)
    else:
        mass = score
    tl.store(p_out + b * nodes + node, mass, mask=inside)


def launch_mass_at(law: Tensor | LogLaw, row: Tensor, token: Tensor) -> Tensor:
    arguments, (log, picked) = law_arguments(law)
    row, token = row.contiguous(), token.contiguous()
    batch, nodes = token.shape
    out = torch.empty(batch, nodes, dtype=law.dtype, device=token.device)
    launch(
        mass_at_kernel,
        (batch,),
        *arguments,
        row,
        nodes if len(row) > 1 else 0,
        token,
        nodes,
        out,
        nodes,
        V=law.shape[2],
        LOG=log,
        PICKED=picked,
        WIDE=wide(law.dtype),
        NODES=tile_of(nodes, 1 << 16),
    )
    return out


@triton.jit(do_not_specialize=["rows", "nodes"])
def dense_kernel(
    p_law,
    p_stats,
    p_row,
    s_batch,
    s_row,
    rows,
    p_out,
    nodes,
    V: tl.constexpr,
    PICKED: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
):
    node, tile = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    law, stat = law_row(p_law, p_stats, p_row, s_batch, s_row, rows, node // nodes, node % nodes, True, PICKED)
    o = tile * TILE + tl.arange(0, TILE)
    tl.store(p_out + node * V + o, law_at(law, stat, o, o < V, True, WIDE), mask=o < V)


def launch_dense(law: LogLaw) -> Tensor:
    arguments, (_, picked) = law_arguments(law)
    batch, nodes, size = law.shape
    tile, out = tile_of(size), torch.empty(batch, nodes, size, dtype=law.dtype, device=law.device)
    launch(
        dense_kernel,
        (batch * nodes, ceil_div(size, tile)),
        *arguments,
        out,
        nodes,
        V=size,
        PICKED=picked,
        WIDE=wide(law.dtype),
        TILE=tile,
    )
    return out


@triton.jit
def span_stats(
    p_row,
    inverse,
    floor,
    start,
    V: tl.constexpr,
    BEST: tl.constexpr,
    SUM: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Return a span's largest score, its lowest id (`BEST`), and the sum of exponentials relative to it (`SUM`)."""
    o = start + tl.arange(0, TILE)
    score = tl.load(p_row + o, mask=o < V, other=float("-inf")).to(WIDE) * inverse
    tops, ids = tl.where(score == score, score, float("inf")), o
    for tile in range(TILE, SPAN, TILE):
        rank = tl.load(p_row + o + tile, mask=o + tile < V, other=float("-inf")).to(WIDE) * inverse
        rank = tl.where(rank == rank, rank, float("inf"))
        ids = tl.where(rank > tops, o + tile, ids)
        tops = tl.maximum(tops, rank)
    top = tl.max(tops, 0)
    best, total = tl.full((), 0, tl.int64), tl.full((), 0.0, WIDE)
    if BEST:
        best = tl.min(tl.where(tops == top, ids, V), 0).to(tl.int64)
        best = tl.where(best < V, best, 0)
    if SUM:
        base = tl.where(top == float("-inf"), 0.0, top)
        totals = tl.where(score < floor, 0.0, tl.exp(score - base))
        for tile in range(TILE, SPAN, TILE):
            rest = tl.load(p_row + o + tile, mask=o + tile < V, other=float("-inf")).to(WIDE) * inverse
            totals += tl.where(rest < floor, 0.0, tl.exp(rest - base))
        total = tl.sum(totals, 0)
    return top, best, total


@triton.jit
def row_sum(p_part, row, spans, SPANS: tl.constexpr):
    """Return the largest score and the log-sum-exp of a row from those of its spans."""
    span = tl.arange(0, SPANS)
    part = p_part + (tl.cast(row, tl.int64) * spans + span) * 2
    tops = tl.load(part, mask=span < spans, other=float("-inf"))
    sums = tl.load(part + 1, mask=span < spans, other=0.0)
    top = tl.max(tops, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    return top, top + tl.log(tl.sum(sums * tl.exp(tops - base), 0))


@triton.jit(do_not_specialize=["rows"])
def row_stats_kernel(
    p_scores,
    s_batch,
    s_row,
    p_inverse,
    p_floor,
    p_part,
    p_best,
    rows,
    V: tl.constexpr,
    SCALED: tl.constexpr,
    CUT: tl.constexpr,
    SUM: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
):
    row, span = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    b = row // rows
    inverse = tl.load(p_inverse + b).to(WIDE) if SCALED else tl.full((), 1.0, WIDE)
    floor = tl.load(p_floor + row).to(WIDE) if CUT else tl.full((), float("-inf"), WIDE)
    p_row = p_scores + b * s_batch + row % rows * s_row
    top, best, total = span_stats(p_row, inverse, floor, span * SPAN, V, True, SUM, WIDE, TILE, SPAN)
    out = row * tl.num_programs(1) + span
    tl.store(p_part + out * 2, top)
    tl.store(p_part + out * 2 + 1, total)
    tl.store(p_best + out, best)


@triton.jit
def row_winner(p_part, p_best, row, spans, SPANS: tl.constexpr):
    """Return the id of the largest score of a row from those of its spans."""
    span = tl.arange(0, SPANS)
    tops = tl.load(p_part + (row * spans + span) * 2, mask=span < spans, other=float("-inf"))
    best = tl.load(p_best + row * spans + span, mask=span < spans, other=0)
    first = tl.min(tl.where(tops == tl.max(tops, 0), span, SPANS), 0)
    return tl.sum(tl.where(span == first, best, 0), 0)


@triton.jit(do_not_specialize=["rows", "spans"])
def row_stats_end_kernel(
    p_part,
    p_part_best,
    p_inverse,
    p_floor,
    p_stats,
    p_top,
    p_best,
    rows,
    spans,
    SCALED: tl.constexpr,
    CUT: tl.constexpr,
    WIDE: tl.constexpr,
    SPANS: tl.constexpr,
):
    row = tl.cast(tl.program_id(0), tl.int64)
    top, lse = row_sum(p_part, row, spans, SPANS)
    stats = p_stats + row * 3
    tl.store(stats, lse)
    tl.store(stats + 1, tl.load(p_inverse + row // rows).to(WIDE) if SCALED else tl.full((), 1.0, WIDE))
    tl.store(stats + 2, tl.load(p_floor + row).to(WIDE) if CUT else tl.full((), float("-inf"), WIDE))
    tl.store(p_top + row, top)
    tl.store(p_best + row, row_winner(p_part, p_part_best, row, spans, SPANS))


@triton.jit(do_not_specialize=["rows", "spans", "s_parent"])
def match_end_kernel(
    p_part,
    p_part_best,
    p_value,
    p_parent,
    s_parent,
    p_live,
    p_best,
    p_hit,
    rows,
    spans,
    RAGGED: tl.constexpr,
    SPANS: tl.constexpr,
):
    row = tl.cast(tl.program_id(0), tl.int64)
    b, m = row // rows, row % rows
    tl.store(p_best + row, row_winner(p_part, p_part_best, row, spans, SPANS))
    parent = b * rows + tl.load(p_parent + b * s_parent + m)
    hit = tl.load(p_value + row) == row_winner(p_part, p_part_best, parent, spans, SPANS)
    if RAGGED:
        hit = hit & (tl.load(p_live + row) != 0)
    tl.store(p_hit + row, tl.where(hit, 1.0, 0.0))


def launch_best_match(scores: Tensor, value: Tensor, parent: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor]:
    part, ids, spans = _span_stats(scores, None, None, False)
    batch, rows = value.shape
    best, hit = torch.empty_like(value), torch.empty(batch, rows, dtype=torch.float32, device=value.device)
    launch(
        match_end_kernel,
        (batch * rows,),
        part,
        ids,
        value.contiguous(),
        parent.contiguous(),
        0 if len(parent) == 1 else rows,
        value if live is None else live.contiguous(),
        best,
        hit,
        rows,
        spans,
        RAGGED=live is not None,
        SPANS=tile_of(spans, 1 << 16),
        num_warps=1,
    )
    return best, hit


def _span_stats(scores: Tensor, inverse: Tensor | None, floor: Tensor | None, sums: bool) -> tuple[Tensor, Tensor, int]:
    """Return every span's largest score and sum, the id of the former, and the number of spans in a row."""
    batch, rows, size = scores.shape
    dtype, device, span = wide_of(scores.dtype), scores.device, span_of(size, batch * rows)
    spans = ceil_div(size, span)
    part = torch.empty(batch, rows, spans, 2, dtype=dtype, device=device)
    best = torch.empty(batch, rows, spans, dtype=torch.int64, device=device)
    launch(
        row_stats_kernel,
        (batch * rows, spans),
        scores,
        *scores.stride()[:2],
        scores if inverse is None else inverse,
        scores if floor is None else floor,
        part,
        best,
        rows,
        V=size,
        TILE=tile_of(size),
        SPAN=span,
        SCALED=inverse is not None,
        CUT=floor is not None,
        SUM=sums,
        WIDE=wide(dtype),
    )
    return part, best, spans


def launch_row_stats(scores: Tensor, inverse: Tensor | None, floor: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    batch, rows, _ = scores.shape
    inverse = None if inverse is None else inverse.contiguous()
    floor = None if floor is None else floor.contiguous()
    part, ids, spans = _span_stats(scores, inverse, floor, True)
    new = {"dtype": wide_of(scores.dtype), "device": scores.device}
    stats, top = torch.empty(batch, rows, 3, **new), torch.empty(batch, rows, **new)
    best = torch.empty(batch, rows, dtype=torch.int64, device=scores.device)
    launch(
        row_stats_end_kernel,
        (batch * rows,),
        part,
        ids,
        scores if inverse is None else inverse,
        scores if floor is None else floor,
        stats,
        top,
        best,
        rows,
        spans,
        SCALED=inverse is not None,
        CUT=floor is not None,
        WIDE=wide(stats.dtype),
        SPANS=tile_of(spans, 1 << 16),
        num_warps=1,
    )
    return stats, top, best
