"""Statistics of rows of scores: log-sum-exp, largest value and where it stands, with temperature and cuts folded in.

Exact; one pass over the scores, nothing as wide as the vocabulary is written by the kernel. Ties: the lowest id. NaN and
+Inf: lse is NaN, best is in range (the first such value), so that the row is bad and everything else goes on. A row of
-Inf alone: lse is -Inf, its law NaN, best 0. Scores of 16 bits are widened to float32 before anything is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.kernels.backend import on_kernels
from mmspec.kernels.checks import FLOATS, WIDE, expect, expect_dense
from mmspec.kernels.law import LogLaw, wide


@dataclass(frozen=True, slots=True, eq=False)
class RowStats:
    """law: the rows as laws, whose `stats` [B, M, 3] hold lse, 1 / T and the floor.   top: float [B, M], the largest scaled
    score.   best: int64 [B, M], its id."""

    law: LogLaw
    top: Tensor
    best: Tensor


def row_stats(scores: Tensor, inverse: Tensor | None = None, floor: Tensor | None = None) -> RowStats:
    """Statistics of the rows of scores float [B, M, V].

    inverse: float32 or float64 [B], 1 / T of each request, None for 1.   floor: float [B, M], scaled scores below it are
    outside the law (see `cut_floor`), None for none; it must leave the largest one.
    """
    expect("scores", scores, FLOATS, None, None, None)
    expect_dense("scores", scores)
    if inverse is not None:
        expect("inverse", inverse, WIDE, scores.shape[0])
    if floor is not None:
        expect("floor", floor, WIDE, *scores.shape[:2])
    if on_kernels(scores):
        from mmspec.kernels.gpu.stats import launch_row_stats

        stats, top, best = launch_row_stats(scores, inverse, floor)
        return RowStats(LogLaw(scores, stats), top, best)
    return row_stats_reference(scores, inverse, floor)


def row_stats_reference(scores: Tensor, inverse: Tensor | None = None, floor: Tensor | None = None) -> RowStats:
    dtype = wide(scores.dtype)
    scale = scores.new_ones(scores.shape[:2], dtype=dtype)
    scale = scale if inverse is None else scale * inverse.to(dtype)[:, None]
    scaled = scores.to(dtype) * scale[..., None]
    top, best = scaled.amax(-1), scaled.argmax(-1)
    bound = torch.full_like(top, -torch.inf) if floor is None else floor.to(dtype)
    lse = scaled.masked_fill(scaled < bound[..., None], -torch.inf).logsumexp(-1)
    lse = torch.where(top == torch.inf, torch.nan, lse)
    return RowStats(LogLaw(scores, torch.stack((lse, scale, bound), -1)), top, best)


def row_best(scores: Tensor) -> Tensor:
    """The id of the largest score of each row, int64 [B, M]; the lowest of several. scores: float [B, M, V]."""
    if on_kernels(scores):
        return row_stats(scores).best
    expect("scores", scores, FLOATS, None, None, None)
    return scores.argmax(-1)
