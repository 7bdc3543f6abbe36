"""The scalar of K-SEQ: how far each of n i.i.d. drafts is discounted.

The kernel's bisection runs in one program a node and takes the same steps; on a bound that is met to rounding the two sides
may end one step, (n - 1) / 2^STEPS, apart: both ends are valid, so both are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.backend import on_kernels
from mmspec.kernels.checks import INDEX, expect
from mmspec.kernels.law import TINY, LogLaw, check_laws

STEPS = 12


def kseq_discount(p: Tensor | LogLaw, q: Tensor | LogLaw, count: Tensor) -> tuple[Tensor, Tensor]:
    """rho >= 1 and the scale c of the residual [p - c min(p / rho, q)]+, both float [B, M].

    With beta = sum min(p / rho, q), the smallest valid rho solves 1 - (1 - beta)^n = rho beta; a bisection on [1, n] of a
    fixed number of steps returns its valid end, which is exact and loses at most (n - 1) / 2^STEPS in rho.
    p, q: float [B, M, V].   count: int64 [B, M], children drawn, 0 included.
    """
    check_laws(p, q)
    expect("count", count, INDEX, *p.shape[:2])
    if isinstance(p, LogLaw) or on_kernels(p):
        from mmspec.kernels.gpu.kseq import launch_kseq

        return launch_kseq(p, q, count)
    return kseq_discount_reference(p, q, count)


def kseq_discount_reference(p: Tensor, q: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    count = count.to(p.dtype)
    low, high = torch.ones_like(count), count.clamp_min(1)
    for _ in range(STEPS):
        middle = (low + high) / 2
        beta = _overlap(p, q, middle)
        valid = _any_of(beta, count) <= middle * beta
        low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
    beta = _overlap(p, q, high)
    return high, _any_of(beta, count) / beta


def kseq_residual(p: Tensor, q: Tensor, rho: Tensor, scale: Tensor) -> Tensor:
    """[p - c min(p / rho, q)]+ unnormalised, and p where that is empty or not a number. p, q: [B, V]; rho, scale: [B]."""
    rest = (p - scale[:, None] * torch.minimum(p / rho[:, None], q)).clamp_min(0)
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)


def _overlap(p: Tensor, q: Tensor, rho: Tensor) -> Tensor:
    return (torch.minimum(p, q * rho[..., None]).sum(-1) / rho).clamp(TINY, 1)


def _any_of(beta: Tensor, count: Tensor) -> Tensor:
    """1 - (1 - beta)^n without cancellation, 0 for n = 0."""
    return -torch.special.xlog1py(count, -beta).expm1()
