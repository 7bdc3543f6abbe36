"""Categorical laws: softmax of scores, statistics of rows, lookups at drafted tokens, residual masses and residual laws.

A law [B, M, V] is a tensor of probabilities or, where kernels run, a `LogLaw`: scores with the statistics of their rows,
from which kernels work out each probability where they need it. Nothing as wide as the vocabulary is written then. The law of
a drafter with a reduced vocabulary may be a `ReducedLaw` elsewhere.

Contract of the ops here: float32 for scores of 16 and 32 bits, float64 for float64. NaN: a row of scores that holds NaN or
+Inf, or only -Inf, is a law of NaN throughout, thresholds of NaN pass nothing and a residual that is no law becomes p. Its
log-sum-exp is NaN (-Inf for a row of -Inf) and its best id is in range, so that the row is bad and everything else goes on.
Ties: the lowest id. Strides: any, but 1 along the vocabulary. Kernels sum tiles in one order, so results are the same at
every launch; they differ from the references in rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.kernels.dispatch import FLOATS, INDEX, WIDE, expect, expect_dense, expect_rows, on_kernels, wide
from mmspec.kernels.draft_tree import take_node
from mmspec.kernels.log_law import LogLaw
from mmspec.kernels.reduced_law import ReducedLaw


def dense(law: Tensor | LogLaw | ReducedLaw) -> Tensor:
    """The probabilities of a law, float [B, M, V]."""
    if isinstance(law, ReducedLaw):
        return law.spread(law.mass)
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
    """tensor [B, N, ...] at one node a row, int64 [B] -> [B, ...]; of a law its probabilities."""
    if isinstance(tensor, ReducedLaw):
        return tensor.spread(take_node(tensor.mass, node))
    return dense(tensor.at(node))[:, 0] if isinstance(tensor, LogLaw) else take_node(tensor, node)


def law_of(scores: Tensor) -> Tensor:
    """The law softmax(scores) over the last axis, in float64 for float64 scores and float32 otherwise."""
    return torch.softmax(scores, -1, dtype=wide(scores.dtype))


def law_rows(scores: Tensor) -> Tensor | LogLaw:
    """The laws of scores [B, M, V] in the form this device works with best: probabilities, or a `LogLaw` for kernels."""
    expect("scores", scores, FLOATS, None, None, None)
    return row_stats(scores).law if on_kernels(scores) else law_of(scores)


def check_laws(p: Tensor | LogLaw | ReducedLaw, q: Tensor | LogLaw | ReducedLaw) -> None:
    """Raises ValueError unless p and q are laws over one vocabulary, of one batch, with dense rows."""
    for name, law in (("p", p), ("q", q)):
        if isinstance(law, LogLaw | ReducedLaw):
            continue
        expect(name, law, WIDE, None, None, None)
        expect_dense(name, law)
    if q.shape[2] != p.shape[2] or q.shape[0] != p.shape[0]:
        raise ValueError(f"q: expected laws of the batch and vocabulary of p {list(p.shape)}, got {list(q.shape)}")


def mass_at(law: Tensor | LogLaw | ReducedLaw, row: Tensor, token: Tensor) -> Tensor:
    """law[b, row, token], float [B, N]. law: [B, M, V]; row: int64 [N] or [R, N], R in {1, B}; token: int64 [B, N].

    Rows and tokens out of range are moved to the nearest one: they belong to the root, leaves or undrafted nodes.
    """
    expect("token", token, INDEX, law.shape[0], None)
    row = row if row.dim() == 2 else row[None]
    expect_rows("row", row, law.shape[0], token.shape[1])
    if isinstance(law, ReducedLaw):
        return mass_at_reference(law.with_rest(), row, law.place(token))
    if isinstance(law, LogLaw) or on_kernels(law):
        from mmspec.kernels.gpu.law import launch_mass_at

        return launch_mass_at(law, row, token)
    return mass_at_reference(law, row, token)


def mass_at_reference(law: Tensor, row: Tensor, token: Tensor) -> Tensor:
    flat = row.clamp_min(0) * law.shape[-1] + token.clamp(0, law.shape[-1] - 1)
    return law.flatten(1).gather(1, flat)


def residual_mass(p: Tensor | LogLaw, q: Tensor | LogLaw, alpha: Tensor, beta: Tensor) -> Tensor:
    """sum_x [alpha p(x) - beta q(x)]+, float [B, M]. p, q: [B, M, V]; alpha, beta: [B, M]."""
    check_laws(p, q)
    expect("alpha", alpha, WIDE, *q.shape[:2])
    expect("beta", beta, WIDE, *q.shape[:2])
    if isinstance(p, LogLaw) or on_kernels(p):
        from mmspec.kernels.gpu.law import launch_residual_mass

        return launch_residual_mass(p, q, alpha, beta)
    return residual_mass_reference(p, q, alpha, beta)


def residual_mass_reference(p: Tensor, q: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.addcmul(p * alpha[..., None], q, beta[..., None], value=-1).clamp_(min=0).sum(-1)


def residual_law(
    p: Tensor, q: Tensor, alpha: Tensor, beta: Tensor, token: Tensor | None = None, remove: Tensor | None = None
) -> Tensor:
    """[alpha p - beta q]+ unnormalised, and p where that is empty or not a number. p, q: [B, V]; alpha, beta: [B].

    token: int64 [B, N]; remove: bool [B, N], tokens whose residual is 0; None for none.
    Written out: for what looks at whole laws. Rounds on a GPU draw from it without that, see `residual_draw`.
    """
    rest = torch.addcmul(p * alpha[:, None], q, beta[:, None], value=-1).clamp_(min=0)
    if remove is not None:
        rest.scatter_reduce_(1, token, torch.where(remove, 0.0, torch.inf).to(rest.dtype), "amin")
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)


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


def row_best(scores: Tensor) -> Tensor:
    """The id of the largest score of each row, int64 [B, M]; the lowest of several. scores: float [B, M, V]."""
    if on_kernels(scores):
        return row_stats(scores).best
    expect("scores", scores, FLOATS, None, None, None)
    return scores.argmax(-1)
