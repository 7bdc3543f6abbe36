"""Kernel launches, and device functions shared by kernels: reading a distribution, and the random numbers of a row."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.dispatch import show_launch
from mmspec.kernels.log_law import LogLaw

TILE = 4096  # values of a vocabulary that a program loads at once
SPAN = 16384  # the most values per program
PROGRAMS = 1024  # the programs that keep a GPU busy

_launched = 0


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel over a grid, or nothing over an empty grid.

    Every product and every sum is rounded, as in the references: fused, `a * p - a * p` leaves a rounding error, and a
    residual in which nothing is left would be sampled from.
    """
    global _launched
    if all(grid):
        _launched += 1
        show_launch(arguments)
        kernel[grid](*arguments, enable_fp_fusion=False, **constants)


def launch_count() -> int:
    """Return the number of kernels that this process has launched; benchmarks use differences."""
    return _launched


def wide(dtype: torch.dtype) -> tl.dtype:
    """Return the dtype of sums over a vocabulary: float64 for float64, float32 for all others."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def tile_of(size: int, most: int = TILE) -> int:
    """Return a power of two that covers `size`, at most `most`, at least 16."""
    return max(16, min(1 << (size - 1).bit_length(), most))


def ceil_div(size: int, part: int) -> int:
    return -(-size // part)  # Triton's own costs a microsecond a call


def span_of(size: int, rows: int, least: int = TILE) -> int:
    """Return the values of a row of `size` per program: a power of two, at most `SPAN`, down to `least` for few rows."""
    span = tile_of(size, SPAN)
    while span > least and rows * ceil_div(size, span) < PROGRAMS:
        span //= 2
    return span


def law_arguments(law: Tensor | LogLaw) -> tuple[tuple, dict[str, bool]]:
    """Return a law [B, M, V] as kernel arguments: its pointers and strides, and two constants: whether it is scores, and
    whether an index selects its rows."""
    if isinstance(law, LogLaw):
        scores = law.scores
        row = scores if law.row is None else law.row
        return (scores, law.stats, row, *scores.stride()[:2], scores.shape[1]), (True, law.row is not None)
    return (law, law, law, *law.stride()[:2], law.shape[1]), (False, False)


GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
MIX1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def law_row(p_law, p_stats, p_row, s_batch, s_row, rows, b, m, LOG: tl.constexpr, PICKED: tl.constexpr):
    """Return the address of row m of a law, and the address of its statistics."""
    r = tl.load(p_row + m) if PICKED else m
    b, r = tl.cast(b, tl.int64), tl.cast(r, tl.int64)
    return p_law + b * s_batch + r * s_row, p_stats + ((b * rows + r) * 3 if LOG else 0)


@triton.jit
def law_at(p_law, p_stats, o, inside, LOG: tl.constexpr, WIDE: tl.constexpr):
    """Return the law's probabilities at offsets o, 0 outside. For scores exp(score / T - lse), 0 below the floor."""
    if LOG:
        score = tl.load(p_law + o, mask=inside, other=float("-inf")).to(WIDE) * tl.load(p_stats + 1)
        mass = tl.exp(score - tl.load(p_stats))
        # the product propagates NaN, so that a bad row is NaN throughout
        return tl.where(inside & (score >= tl.load(p_stats + 2)), mass, 0.0 * mass)
    else:
        return tl.load(p_law + o, mask=inside, other=0.0).to(WIDE)


@triton.jit
def mixed(x):
    """Apply the finaliser of SplitMix64, as `counter.mix`."""
    x = (x ^ (x >> 30)) * MIX1
    x = (x ^ (x >> 27)) * MIX2
    return x ^ (x >> 31)


@triton.jit
def row_key(p_seed, stream, b):
    """Return the key of row b in a stream, as `counter.row_keys`."""
    seed = tl.load(p_seed + b).to(tl.uint64, bitcast=True)
    return mixed(seed ^ mixed(stream.to(tl.uint64, bitcast=True) * GOLDEN))


@triton.jit
def lane_bits(key, lane):
    """Return 53 random bits of a lane (from 0) as an integer below 2^53, as in `counter.uniforms`."""
    return mixed(key + (lane.to(tl.uint64) + 1) * GOLDEN) >> 11


@triton.jit
def log1p_minus(w):
    """Return -log(1 - w) for w in (0, 1), without cancellation near 0."""
    near = w * (1 + w * (0.5 + w * (0.33333333333 + w * 0.25)))
    return tl.where(w < 0.015625, near, -tl.log(1 - w))
