"""Truncation by pivots, several programs a row.

A cut is the smallest score that stays. Let F(v) be the measure of the scores above v: their number for top-k, their
mass for top-p. The cut lies above v exactly where F(v) exceeds a bound, so four launches narrow it down: F at whole
numbers below each span's own largest score, F at 16 points between two of them, a list of the scores between two of
these, and a search in the list by integer keys of the same order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.dispatch import wide as wide_of
from mmspec.kernels.gpu.launch import ceil_div, launch, span_of, tile_of, wide
from mmspec.kernels.gpu.pivots import (
    PIVOTS,
    coarse_bounds,
    fine_bounds,
    finite,
    key_of,
    listed,
    measure,
    point,
    scaled_tile,
    score_of,
)


@triton.jit(do_not_specialize=["rows"])
def coarse_kernel(
    p_scores,
    s_batch,
    s_row,
    p_inverse,
    p_floor,
    p_part,
    p_end,
    rows,
    V: tl.constexpr,
    SCALED: tl.constexpr,
    CUT: tl.constexpr,
    BY_K: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
):
    row, span = tl.program_id(0), tl.program_id(1)
    b, m = tl.cast(row // rows, tl.int64), tl.cast(row % rows, tl.int64)
    p_row, p_inverse, p_floor = p_scores + b * s_batch + m * s_row, p_inverse + b, p_floor + row
    tops, leasts = tl.full((TILE,), float("-inf"), WIDE), tl.full((TILE,), float("inf"), WIDE)
    for start in tl.static_range(0, SPAN, TILE):
        score = scaled_tile(p_row, p_inverse, p_floor, span * SPAN + start + tl.arange(0, TILE), V, SCALED, CUT, WIDE)
        tops = tl.maximum(tops, tl.where(score == score, score, float("inf")))
        leasts = tl.minimum(leasts, tl.where(score > float("-inf"), score, float("inf")))
    top = tl.max(tops, 0)
    base, j = finite(top), tl.arange(0, PIVOTS)
    pivot = tl.where(j == 0, float("-inf"), tl.ceil(base) - j)[:, None]
    above = tl.zeros((PIVOTS, TILE), dtype=WIDE)
    for start in tl.static_range(0, SPAN, TILE):
        score = scaled_tile(p_row, p_inverse, p_floor, span * SPAN + start + tl.arange(0, TILE), V, SCALED, CUT, WIDE)
        above += tl.where(score[None, :] > pivot, measure(score, base, BY_K)[None, :], 0.0)
    out = tl.cast(row, tl.int64) * tl.num_programs(1) + span
    tl.store(p_end + out * 2, top)
    tl.store(p_end + out * 2 + 1, tl.min(leasts, 0))
    tl.store(p_part + out * PIVOTS + j, tl.sum(above, 1))


@triton.jit(do_not_specialize=["rows", "amount", "spans"])
def fine_kernel(
    p_scores,
    s_batch,
    s_row,
    p_inverse,
    p_floor,
    p_part,
    p_end,
    p_fine,
    rows,
    amount,
    spans,
    V: tl.constexpr,
    SCALED: tl.constexpr,
    CUT: tl.constexpr,
    BY_K: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    SPANS: tl.constexpr,
):
    row, span = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    p_row, first = p_scores + row // rows * s_batch + row % rows * s_row, row * spans
    top, least, _, low, high = coarse_bounds(p_part + first * PIVOTS, p_end + first * 2, amount, spans, BY_K, SPANS)
    base, j = finite(top), tl.arange(0, PIVOTS)
    pivot = point(low, high, least, j.to(WIDE))[:, None]
    above = tl.zeros((PIVOTS, TILE), dtype=WIDE)
    for start in tl.static_range(0, SPAN, TILE):
        o = span * SPAN + start + tl.arange(0, TILE)
        score = scaled_tile(p_row, p_inverse + row // rows, p_floor + row, o, V, SCALED, CUT, WIDE)
        above += tl.where(score[None, :] > pivot, measure(score, base, BY_K)[None, :], 0.0)
    tl.store(p_fine + (first + span) * PIVOTS + j, tl.sum(above, 1))


@triton.jit(do_not_specialize=["rows", "amount", "spans"])
def list_kernel(
    p_scores,
    s_batch,
    s_row,
    p_inverse,
    p_floor,
    p_part,
    p_end,
    p_fine,
    p_list,
    p_count,
    rows,
    amount,
    spans,
    V: tl.constexpr,
    SCALED: tl.constexpr,
    CUT: tl.constexpr,
    BY_K: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    SPANS: tl.constexpr,
):
    """List the scores of a span in the interval, in the order of the vocabulary."""
    row, span = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    p_row, first = p_scores + row // rows * s_batch + row % rows * s_row, row * spans
    _, least, bound, low, high = coarse_bounds(p_part + first * PIVOTS, p_end + first * 2, amount, spans, BY_K, SPANS)
    low, high, _ = fine_bounds(p_fine + first * PIVOTS, low, high, least, bound, spans, SPANS)
    count, out = tl.full((), 0, tl.int32), p_list + (first + span) * SPAN
    for start in tl.static_range(0, SPAN, TILE):
        o = span * SPAN + start + tl.arange(0, TILE)
        score = scaled_tile(p_row, p_inverse + row // rows, p_floor + row, o, V, SCALED, CUT, WIDE)
        inside = ((score > low) & (score <= high)).to(tl.int32)
        tl.store(out + count + tl.cumsum(inside, 0) - 1, score, mask=inside > 0)
        count += tl.sum(inside, 0)
    tl.store(p_count + first + span, count)


@triton.jit(do_not_specialize=["amount", "spans"])
def cut_kernel(
    p_part,
    p_end,
    p_fine,
    p_list,
    p_count,
    p_out,
    amount,
    spans,
    BY_K: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    SPANS: tl.constexpr,
):
    """Find the largest key c for which the measure of keys above c exceeds the bound; the cut is the next key."""
    row, span = tl.cast(tl.program_id(0), tl.int64), tl.arange(0, SPANS)
    first, o, j = row * spans, tl.arange(0, TILE), tl.arange(0, PIVOTS)
    top, least, bound, low, high = coarse_bounds(p_part + first * PIVOTS, p_end + first * 2, amount, spans, BY_K, SPANS)
    low, high, above = fine_bounds(p_fine + first * PIVOTS, low, high, least, bound, spans, SPANS)
    n = tl.sum(tl.load(p_count + first + span, mask=span < spans, other=0), 0)
    base, p_list, p_count = finite(top), p_list + first * SPAN, p_count + first
    head, inside = listed(p_list, p_count, o, spans, SPAN, SPANS)
    weight, keys = tl.where(inside, measure(head, base, BY_K), 0.0), key_of(head)
    start, end = key_of(low), key_of(high)
    while end - start > 1:
        unit = (end - start + 15) >> 4
        step = (j + 1).to(start.dtype) * unit
        pivot = (start + step)[:, None]
        more = above + tl.sum(tl.where(keys[None, :] > pivot, weight[None, :], 0.0), 1)
        for later in range(TILE, n, TILE):
            rest, inside = listed(p_list, p_count, later + o, spans, SPAN, SPANS)
            mass = tl.where(inside, measure(rest, base, BY_K), 0.0)
            more += tl.sum(tl.where(key_of(rest)[None, :] > pivot, mass[None, :], 0.0), 1)
        reached = (more > bound) & (step < end - start)
        start += tl.max(tl.where(reached, j + 1, 0), 0).to(start.dtype) * unit
        end = tl.where(end - start > unit, start + unit, end)
    cut = score_of(end)
    # nothing above -Inf reaches the bound: everything stays
    cut = tl.where(start == key_of(tl.full((), float("-inf"), low.dtype)), float("-inf"), cut)
    tl.store(p_out + row, tl.where(top == float("inf"), float("nan"), cut))


def launch_truncation_floor(scores: Tensor, top_k: int, top_p: float, inverse: Tensor | None, p_first: bool) -> Tensor:
    steps = [(True, top_k - 0.5)] * (top_k > 0) + [(False, top_p)] * (top_p < 1)
    floors: list[Tensor] = []
    for by_k, amount in steps[::-1] if p_first else steps:
        inside = floors[-1] if floors and not p_first else None
        floors.append(_cut(scores, by_k, amount, inverse, inside))
    if not floors:  # only the rows' NaN and infinities are of interest
        return _cut(scores, True, scores.shape[2] + 0.5, inverse, None)
    return torch.maximum(*floors) if len(floors) > 1 else floors[0]


def _cut(scores: Tensor, by_k: bool, amount: float, inverse: Tensor | None, inside: Tensor | None) -> Tensor:
    """Return the smallest score that stays, float [B, M], among those from `inside` float [B, M] up."""
    batch, rows, size = scores.shape
    dtype, device, every = wide_of(scores.dtype), scores.device, batch * rows
    span = span_of(size, every)  # loops over it are unrolled, so that all loads are in flight together
    tile = min(span, 1024)
    spans = ceil_div(size, span)
    part, fine = (torch.empty(every, spans, PIVOTS.value, dtype=dtype, device=device) for _ in range(2))
    end, few = (
        torch.empty(every, spans, 2, dtype=dtype, device=device),
        torch.empty(every, spans * span, dtype=dtype, device=device),
    )
    count, cut = (
        torch.empty(every, spans, dtype=torch.int32, device=device),
        torch.empty(batch, rows, dtype=dtype, device=device),
    )
    shared = (
        scores,
        *scores.stride()[:2],
        scores if inverse is None else inverse.contiguous(),
        scores if inside is None else inside,
        part,
        end,
    )
    forms = {"V": size, "SCALED": inverse is not None, "CUT": inside is not None, "WIDE": wide(dtype), "SPAN": span}
    sizes, wanted = {"BY_K": by_k, "SPANS": tile_of(spans, 1 << 16)}, (amount, spans)
    launch(coarse_kernel, (every, spans), *shared, rows, BY_K=by_k, TILE=tile, num_warps=8, maxnreg=128, **forms)
    launch(
        fine_kernel, (every, spans), *shared, fine, rows, *wanted, TILE=tile, num_warps=8, maxnreg=128, **forms, **sizes
    )
    launch(
        list_kernel,
        (every, spans),
        *shared,
        fine,
        few,
        count,
        rows,
        *wanted,
        TILE=tile_of(span),
        num_warps=8,
        **forms,
        **sizes,
    )
    launch(cut_kernel, (every,), part, end, fine, few, count, cut, *wanted, TILE=2048, SPAN=span, num_warps=16, **sizes)
    return cut


@triton.jit
def mask_kernel(p_scores, s_row, p_floor, p_out, V: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr):
    row, o = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    score = tl.load(p_scores + row * s_row + o, mask=o < V)
    score = tl.where(score.to(WIDE) < tl.load(p_floor + row), float("-inf"), score)
    tl.store(p_out + row * V + o, score, mask=o < V)


def launch_mask(scores: Tensor, floor: Tensor) -> Tensor:
    """Return scores [M, V] with -Inf below the floor [M] of their row."""
    rows, size = scores.shape
    out, tile = scores.new_empty(rows, size), tile_of(size)
    launch(
        mask_kernel,
        (rows, ceil_div(size, tile)),
        scores,
        scores.stride(0),
        floor,
        out,
        V=size,
        WIDE=wide(floor.dtype),
        TILE=tile,
    )
    return out
