"""Categorical distributions ("laws"): softmax, row statistics, look-ups at drafted tokens, and residuals.

A law [B, M, V] is a tensor of probabilities or, for kernels, a `LogLaw`: scores with row statistics, so that no tensor
as wide as the vocabulary is written. In the references it may be a `ReducedLaw`. Probabilities are float32 for scores
of 16 and 32 bits, float64 for float64. A row of scores with NaN or +Inf, or of -Inf alone, is a law of NaN; NaN
thresholds pass nothing, and an invalid residual becomes p. The log-sum-exp of such a row is NaN (-Inf for a row of
-Inf) and its best id is in range. Ties: the lowest id. Strides: any, but 1 along the vocabulary. Kernels sum tiles in a
fixed order; they differ from the references in rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.kernels.dispatch import FLOATS, INDEX, WIDE, expect, expect_dense, expect_rows, on_kernels, wide
from mmspec.kernels.draft_tree import take_node
from mmspec.kernels.log_law import TINY, LogLaw
from mmspec.kernels.reduced_law import ReducedLaw


def dense(law: Tensor | LogLaw | ReducedLaw) -> Tensor:
    if isinstance(law, ReducedLaw):
        return law.dense()
    if not isinstance(law, LogLaw):
        return law
    if on_kernels(law.scores):
        from mmspec.kernels.gpu.law import launch_dense

        return launch_dense(law)
    return dense_reference(law)


def dense_reference(law: LogLaw) -> Tensor:
    scores, stats = law.scores, law.stats
    if law.row is not None:
        scores, stats = scores.index_select(1, law.row), stats.index_select(1, law.row)
    scaled = scores.to(stats.dtype) * stats[..., 1:2]
    mass = (scaled - stats[..., :1]).exp()
    return torch.where(scaled < stats[..., 2:], 0.0 * mass, mass)


def at_node(tensor: Tensor | LogLaw | ReducedLaw, node: Tensor) -> Tensor:
    """Return `tensor` [B, N, ...] at a node per row, int64 [B] -> [B, ...]; for a law its probabilities."""
    if isinstance(tensor, ReducedLaw):
        return tensor.at(node).dense()[:, 0]
    return dense(tensor.at(node))[:, 0] if isinstance(tensor, LogLaw) else take_node(tensor, node)


def ratio_of(p: Tensor, q: Tensor) -> Tensor:
    """Return p / q at drafted values; 0 where q is exactly 0, so that no value passes that q cannot draw."""
    return torch.where(q == 0, 0.0, p / q.clamp_min(TINY))


def law_of(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis, in float64 for float64 scores and float32 otherwise."""
    return torch.softmax(scores, -1, dtype=wide(scores.dtype))


def law_rows(scores: Tensor) -> Tensor | LogLaw:
    """Return the laws of scores [B, M, V] in the form that suits the device: probabilities, or a `LogLaw` for kernels."""
    expect("scores", scores, FLOATS, None, None, None)
    return row_stats(scores).law if on_kernels(scores) else law_of(scores)


def check_laws(p: Tensor | LogLaw | ReducedLaw, q: Tensor | LogLaw | ReducedLaw) -> None:
    for name, law in (("p", p), ("q", q)):
        if isinstance(law, LogLaw | ReducedLaw):
            continue
        expect(name, law, WIDE, None, None, None)
        expect_dense(name, law)
    if q.shape[2] != p.shape[2] or q.shape[0] != p.shape[0]:
        raise ValueError(f"q: expected laws of the batch and vocabulary of p {list(p.shape)}, got {list(q.shape)}")


def mass_at(law: Tensor | LogLaw | ReducedLaw, row: Tensor, token: Tensor) -> Tensor:
    """Return law[b, row, token], float [B, N], of a law [B, M, V]; row int64 [N] or [R, N], token int64 [B, N]. Rows
    and tokens out of range are clamped: they belong to the root, leaves or invalid nodes."""
    expect("token", token, INDEX, law.shape[0], None)
    row = row if row.dim() == 2 else row[None]
    expect_rows("row", row, law.shape[0], token.shape[1])
    if isinstance(law, ReducedLaw):
        return mass_at_reference(law.with_rest(), row, law.place(token, row.clamp_min(0)))
    if isinstance(law, LogLaw) or on_kernels(law):
        from mmspec.kernels.gpu.law import launch_mass_at

        return launch_mass_at(law, row, token)
    return mass_at_reference(law, row, token)


def mass_at_reference(law: Tensor, row: Tensor, token: Tensor) -> Tensor:
    flat = row.clamp_min(0) * law.shape[-1] + token.clamp(0, law.shape[-1] - 1)
    return law.flatten(1).gather(1, flat)


def residual_mass(p: Tensor, q: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Return sum_x [alpha p(x) - beta q(x)]+, float [B, M]; p and q [B, M, V], alpha and beta [B, M]."""
    check_laws(p, q)
    expect("alpha", alpha, WIDE, *q.shape[:2])
    expect("beta", beta, WIDE, *q.shape[:2])
    return torch.addcmul(p * alpha[..., None], q, beta[..., None], value=-1).clamp_(min=0).sum(-1)


def residual_law(
    p: Tensor, q: Tensor, alpha: Tensor, beta: Tensor, token: Tensor | None = None, remove: Tensor | None = None
) -> Tensor:
    """Return the unnormalised [alpha p - beta q]+, or p where that is empty or NaN, float [B, V]; alpha and beta are
    [B]. The tokens int64 [B, N] marked in `remove` bool [B, N] get 0. Rounds on a GPU do not write it, see
    `residual_sample`."""
    rest = torch.addcmul(p * alpha[:, None], q, beta[:, None], value=-1).clamp_(min=0)
    if remove is not None:
        rest.scatter_reduce_(1, token, torch.where(remove, 0.0, torch.inf).to(rest.dtype), "amin")
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)


@dataclass(frozen=True, slots=True, eq=False)
class RowStats:
    law: LogLaw  # its `stats` [B, M, 3] hold lse, 1 / T and the floor
    top: Tensor  # float [B, M], the largest scaled score
    best: Tensor  # int64 [B, M], the id of the largest score


def row_stats(scores: Tensor, inverse: Tensor | None = None, floor: Tensor | None = None) -> RowStats:
    """Return the statistics of scores [B, M, V]. `inverse` [B] is 1 / T, None for 1. Scaled scores below `floor` [B, M]
    are outside the law (see `truncation_floor`); it is at most the largest score."""
    expect("scores", scores, FLOATS, None, None, None)
    expect_dense("scores", scores)
    if inverse is not None:
        expect("inverse", inverse, WIDE, scores.shape[0])
    if floor is not None:
        expect("floor", floor, WIDE, *scores.shape[:2])
    if on_kernels(scores):
        from mmspec.kernels.gpu.law import launch_row_stats

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


def best_match(scores: Tensor, value: Tensor, parent: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the best ids of all rows, int64 [B, N], and 1 where a node has its parent's best id, float32 [B, N], of
    scores [B, N, V], drafted tokens int64 [B, N], parents int64 [R, N] and the nodes `live` bool [B, N] that count."""
    expect("scores", scores, FLOATS, *value.shape, None)
    expect("value", value, INDEX, None, None)
    expect_rows("parent", parent, *value.shape)
    if on_kernels(scores):
        from mmspec.kernels.gpu.law import launch_best_match

        expect_dense("scores", scores)
        return launch_best_match(scores, value, parent, live)
    return best_match_reference(scores, value, parent, live)


def best_match_reference(scores: Tensor, value: Tensor, parent: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor]:
    best = scores.argmax(-1)
    hit = value == best.gather(1, parent.expand(len(value), -1))
    return best, (hit if live is None else hit & live).float()
