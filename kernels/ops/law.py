"""Categorical laws: softmax of scores, lookups at drafted tokens, residual masses and residual laws."""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-30  # a divisor that keeps float32 finite where the quotient is never used


def law_of(scores: Tensor) -> Tensor:
    """The law softmax(scores) over the last axis, in float64 for float64 scores and float32 otherwise."""
    return torch.softmax(scores, -1, dtype=torch.float64 if scores.dtype == torch.float64 else torch.float32)


def mass_at(law: Tensor, row: Tensor, token: Tensor) -> Tensor:
    """law[b, row, token], float [B, N]. law: [B, M, V]; row: int64 [R, N], R in {1, B}; token: int64 [B, N].

    Rows and tokens out of range are moved to the nearest one: they belong to the root, leaves or undrafted nodes.
    """
    flat = row.clamp_min(0) * law.shape[-1] + token.clamp(0, law.shape[-1] - 1)
    return law.flatten(1).gather(1, flat)


def residual_mass(p: Tensor, q: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """sum_x [alpha p(x) - beta q(x)]+, float [B, M]. p, q: [B, M, V]; alpha, beta: [B, M]."""
    return torch.addcmul(p * alpha[..., None], q, beta[..., None], value=-1).clamp_(min=0).sum(-1)


def residual_law(p: Tensor, q: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """[alpha p - beta q]+ unnormalised, and p where that is empty or not a number. p, q: [B, V]; alpha, beta: [B]."""
    rest = torch.addcmul(p * alpha[:, None], q, beta[:, None], value=-1).clamp_(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)
