"""Row statistics: spans of a row side by side, then one small program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import SPAN, launch, tile_of, wide
from mmspec.kernels.law import wide as wide_of


@triton.jit
def added(m, total, other_m, other_total):
    """Two sums of exponentials, each relative to its own largest term, as one."""
    top = tl.maximum(m, other_m)
    base = tl.where(top == float("-inf"), 0.0, top)
    return top, total * tl.exp(m - base) + other_total * tl.exp(other_m - base)


@triton.jit(do_not_specialize=["rows"])
def row_stats_kernel(
    p_scores, s_batch, s_row, p_inverse, p_floor, p_part, p_best, rows,
    V: tl.constexpr, SCALED: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    row, span = tl.program_id(0), tl.program_id(1)
    b, m = tl.cast(row // rows, tl.int64), tl.cast(row % rows, tl.int64)
    p_row = p_scores + b * s_batch + m * s_row
    inverse = tl.load(p_inverse + b).to(WIDE) if SCALED else tl.full((), 1.0, WIDE)
    floor = tl.load(p_floor + row).to(WIDE) if CUT else tl.full((), float("-inf"), WIDE)
    top, best = tl.full((), float("-inf"), WIDE), tl.full((), 0, tl.int64)
    total = tl.full((), 0.0, WIDE)
    for start in range(0, SPAN, TILE):
        o = span * SPAN + start + tl.arange(0, TILE)
        score = tl.load(p_row + o, mask=o < V, other=float("-inf")).to(WIDE) * inverse
        rank = tl.where(score == score, score, float("inf"))
        high = tl.max(rank, 0)
        first = tl.min(tl.where(rank == high, o, V), 0).to(tl.int64)
        best = tl.where(high > top, first, best)
        base = tl.where(high == float("-inf"), 0.0, high)
        part = tl.sum(tl.where(score < floor, 0.0, tl.exp(score - base)), 0)
        top, total = added(top, total, high, part)
    out = tl.cast(row, tl.int64) * tl.num_programs(1) + span
    tl.store(p_part + out * 2, top)
    tl.store(p_part + out * 2 + 1, total)
    tl.store(p_best + out, best)


@triton.jit(do_not_specialize=["rows", "spans"])
def row_stats_end_kernel(
    p_part, p_part_best, p_inverse, p_floor, p_stats, p_top, p_best, rows, spans,
    SCALED: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    row = tl.cast(tl.program_id(0), tl.int64)
    span = tl.arange(0, SPANS)
    part = p_part + (row * spans + span) * 2
    tops = tl.load(part, mask=span < spans, other=float("-inf"))
    sums = tl.load(part + 1, mask=span < spans, other=0.0)
    best = tl.load(p_part_best + row * spans + span, mask=span < spans, other=0)
    top = tl.max(tops, 0)
    first = tl.min(tl.where(tops == top, span, SPANS), 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(sums * tl.exp(tops - base), 0)
    stats = p_stats + row * 3
    tl.store(stats, top + tl.log(total))
    tl.store(stats + 1, tl.load(p_inverse + row // rows).to(WIDE) if SCALED else tl.full((), 1.0, WIDE))
    tl.store(stats + 2, tl.load(p_floor + row).to(WIDE) if CUT else tl.full((), float("-inf"), WIDE))
    tl.store(p_top + row, top)
    tl.store(p_best + row, tl.sum(tl.where(span == first, best, 0), 0))


def launch_row_stats(scores: Tensor, inverse: Tensor | None, floor: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    batch, rows, size = scores.shape
    dtype, device, tile = wide_of(scores.dtype), scores.device, tile_of(size)
    span = max(min(SPAN, triton.cdiv(size, tile) * tile), tile)
    spans = triton.cdiv(size, span)
    part = torch.empty(batch, rows, spans, 2, dtype=dtype, device=device)
    part_best = torch.empty(batch, rows, spans, dtype=torch.int64, device=device)
    stats = torch.empty(batch, rows, 3, dtype=dtype, device=device)
    top, best = torch.empty(batch, rows, dtype=dtype, device=device), part_best[..., 0]
    scale = scores if inverse is None else inverse.contiguous()
    bound = scores if floor is None else floor.contiguous()
    how = {"SCALED": inverse is not None, "CUT": floor is not None, "WIDE": wide(dtype)}
    launch(
        row_stats_kernel, (batch * rows, spans), scores, *scores.stride()[:2], scale, bound, part, part_best, rows,
        V=size, TILE=tile, SPAN=span, **how,
    )  # fmt: skip
    best = torch.empty(batch, rows, dtype=torch.int64, device=device)
    launch(
        row_stats_end_kernel, (batch * rows,), part, part_best, scale, bound, stats, top, best, rows, spans,
        SPANS=tile_of(spans, 1 << 16), **how,
    )  # fmt: skip
    return stats, top, best
