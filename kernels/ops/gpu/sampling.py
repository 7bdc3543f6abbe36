"""Truncation by pivots, a program per row.

A float's bits become an integer key of the same order. The largest key c that satisfies a condition is found three bits
per pass: for top-k "at least k keys >= c", for top-p "the mass of keys > c exceeds p".
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.dispatch import wide as wide_of
from mmspec.kernels.gpu.launch import SPAN, launch, tile_of, wide


@triton.jit
def key_of(score):
    """Map floats to unsigned integers of the same order: negative floats with all bits flipped, the others above them.

    Bits are flipped by an exclusive or: the interpreter of Triton 3.8 evaluates `~` to -1, which no unsigned integer
    can hold.
    """
    # a single return: Triton 3.6 also compiles the statements after a branch that is always taken
    if score.dtype == tl.float64:
        bits = score.to(tl.uint64, bitcast=True)
        key = tl.where(bits >> 63 != 0, bits ^ 0xFFFFFFFFFFFFFFFF, bits | 0x8000000000000000)
    else:
        bits = score.to(tl.uint32, bitcast=True)
        key = tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    return key


@triton.jit
def score_of(key):
    """The inverse of `key_of`."""
    if key.dtype == tl.uint64:
        bits = tl.where(key >> 63 != 0, key & 0x7FFFFFFFFFFFFFFF, key ^ 0xFFFFFFFFFFFFFFFF)
        score = bits.to(tl.float64, bitcast=True)
    else:
        bits = tl.where(key >> 31 != 0, key & 0x7FFFFFFF, key ^ 0xFFFFFFFF)
        score = bits.to(tl.float32, bitcast=True)
    return score


@triton.jit
def scaled_tile(p_row, o, inverse, V: tl.constexpr, WIDE: tl.constexpr):
    score = tl.load(p_row + o, mask=o < V, other=float("-inf")).to(WIDE) * inverse
    return tl.where(score == 0, 0.0, score)  # both zeros get the same key


@triton.jit
def kth_key(p_row, inverse, k, V: tl.constexpr, WIDE: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr):
    """Return the key of the k-th largest score."""
    kth = key_of(tl.full((), 0.0, WIDE)) * 0
    for step in range((BITS + 2) // 3):
        low = BITS - 3 * (step + 1)
        unit = (kth * 0 + 1) << (low if low > 0 else 0)
        most = 7 if low >= 0 else 7 >> -low
        pivots = tl.arange(0, 8)
        counts = tl.zeros((8,), dtype=tl.int32)
        for start in range(0, V, TILE):
            o = start + tl.arange(0, TILE)
            key = key_of(scaled_tile(p_row, o, inverse, V, WIDE))
            reach = (key[None, :] >= (kth + pivots.to(kth.dtype) * unit)[:, None]) & (o < V)[None, :]
            counts += tl.sum(reach.to(tl.int32), 1)
        best = tl.max(tl.where((counts >= k) & (pivots <= most), pivots, 0), 0)
        kth += best.to(kth.dtype) * unit
    return kth


@triton.jit
def nucleus_key(
    p_row, inverse, base, top_p, floor, V: tl.constexpr, WIDE: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Return the largest key c for which the mass of keys above c exceeds top_p of the mass from `floor` up."""
    total = tl.zeros((TILE,), dtype=WIDE)
    for start in range(0, V, TILE):
        score = scaled_tile(p_row, start + tl.arange(0, TILE), inverse, V, WIDE)
        total += tl.where(score < floor, 0.0, tl.exp(score - base))
    bound = tl.sum(total, 0) * top_p
    cut = key_of(tl.full((), 0.0, WIDE)) * 0
    # the cut is the next larger key that occurs
    for step in range((BITS + 2) // 3):
        low = BITS - 3 * (step + 1)
        unit = (cut * 0 + 1) << (low if low > 0 else 0)
        most = 7 if low >= 0 else 7 >> -low
        pivots = tl.arange(0, 8)
        masses = tl.zeros((8,), dtype=WIDE)
        for start in range(0, V, TILE):
            score = scaled_tile(p_row, start + tl.arange(0, TILE), inverse, V, WIDE)
            mass = tl.where(score < floor, 0.0, tl.exp(score - base))
            above = key_of(score)[None, :] > (cut + pivots.to(cut.dtype) * unit)[:, None]
            masses += tl.sum(tl.where(above, mass[None, :], 0.0), 1)
        best = tl.max(tl.where((masses > bound) & (pivots <= most), pivots, 0), 0)
        cut += best.to(cut.dtype) * unit
    return cut


@triton.jit(do_not_specialize=["rows", "top_k", "top_p"])
def truncation_kernel(
    p_scores, s_batch, s_row, p_inverse, p_floor, rows, top_k, top_p,
    V: tl.constexpr, SCALED: tl.constexpr, BY_K: tl.constexpr, BY_P: tl.constexpr, P_FIRST: tl.constexpr,
    WIDE: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    b, m = tl.cast(row // rows, tl.int64), tl.cast(row % rows, tl.int64)
    p_row = p_scores + b * s_batch + m * s_row
    inverse = tl.load(p_inverse + b).to(WIDE) if SCALED else tl.full((), 1.0, WIDE)
    top = tl.full((), float("-inf"), WIDE)
    poison = tl.zeros((TILE,), dtype=WIDE)
    for start in range(0, V, TILE):
        score = scaled_tile(p_row, start + tl.arange(0, TILE), inverse, V, WIDE)
        poison += tl.where((score != score) | (score == float("inf")), 1.0, 0.0)
        top = tl.maximum(top, tl.max(tl.where(score == score, score, float("inf")), 0))
    bad = tl.sum(poison, 0) > 0
    floor = tl.full((), float("-inf"), WIDE)
    if BY_K:
        floor = score_of(kth_key(p_row, inverse, top_k, V, WIDE, BITS, TILE))
    if BY_P:
        whole = floor * 0 + float("-inf") if P_FIRST else floor
        base = tl.where(top == float("-inf"), 0.0, top)
        short = nucleus_key(
            p_row, inverse, base, top_p, tl.where(whole != whole, float("-inf"), whole), V, WIDE, BITS, TILE
        )
        least = top
        for start in range(0, V, TILE):
            o = start + tl.arange(0, TILE)
            score = scaled_tile(p_row, o, inverse, V, WIDE)
            inside = (key_of(score) > short) & (o < V)
            least = tl.minimum(least, tl.min(tl.where(inside, score, float("inf")), 0))
        floor = tl.maximum(floor, least)
    tl.store(p_floor + row, tl.where(bad, float("nan"), floor))


def launch_truncation_floor(scores: Tensor, top_k: int, top_p: float, inverse: Tensor | None, p_first: bool) -> Tensor:
    batch, rows, size = scores.shape
    dtype = wide_of(scores.dtype)
    floor = torch.empty(batch, rows, dtype=dtype, device=scores.device)
    launch(
        truncation_kernel, (batch * rows,), scores, *scores.stride()[:2], scores if inverse is None else inverse.contiguous(),
        floor, rows, top_k, top_p, V=size, SCALED=inverse is not None, BY_K=top_k > 0, BY_P=top_p < 1, P_FIRST=p_first,
        WIDE=wide(dtype), BITS=64 if dtype == torch.float64 else 32, TILE=tile_of(size, SPAN // 8),
    )  # fmt: skip
    return floor
