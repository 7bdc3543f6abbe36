"""Thresholds of siblings that are tested in parallel, and their residuals: target-match and K-SEQ.

Target-match: a mass of NaN makes its own threshold and those of later siblings NaN, which pass nothing. K-SEQ: on a
bound that is met up to rounding, kernel and reference may end a bisection step, (n - 1) / 2^STEPS, apart; both are
exact."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.dispatch import BOOL, INDEX, WIDE, expect, expect_rows, on_kernels
from mmspec.kernels.law import check_laws
from mmspec.kernels.log_law import TINY, LogLaw


def match_thresholds(mass: Tensor, token: Tensor, earlier: Tensor, live: Tensor | None) -> Tensor:
    """Return p(x) / (1 - sum of p over distinct earlier siblings), float [B, N], 0 for the token of an earlier sibling.
    `mass` [B, N] is p at the own token; `earlier` bool [R, N, N] is True where column j is an earlier sibling of row i.
    """
    expect("mass", mass, WIDE, None, None)
    batch, nodes = mass.shape
    expect("token", token, INDEX, batch, nodes)
    expect_rows("earlier", earlier, batch, nodes, nodes)
    if live is not None:
        expect("live", live, BOOL, batch, nodes)
    if on_kernels(mass):
        from mmspec.kernels.gpu.sibling_thresholds import launch_match

        return launch_match(mass, token, earlier, live)
    return match_thresholds_reference(mass, token, earlier, live)


def match_thresholds_reference(mass: Tensor, token: Tensor, earlier: Tensor, live: Tensor | None) -> Tensor:
    same = (token[:, :, None] == token[:, None, :]) & earlier
    same = same if live is None else same & live[:, None, :]
    fresh = torch.where(same.any(-1), 0.0, mass)
    fresh = fresh if live is None else torch.where(live, fresh, 0.0)
    tried = torch.where(earlier, fresh[:, None, :], 0.0).sum(-1)
    return (fresh / (1 - tried).clamp_min(TINY)).clamp_max(1)


def law_without(law: Tensor, token: Tensor, remove: Tensor) -> Tensor:
    """Set the tokens int64 [B, N] marked in `remove` bool [B, N] to 0 in `law` [B, V]; return `law` where nothing is left."""
    rest = law.scatter_reduce(1, token, torch.where(remove, 0.0, torch.inf).to(law.dtype), "amin")
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, law)


STEPS = 12


def kseq_discount(p: Tensor | LogLaw, q: Tensor | LogLaw, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return rho >= 1 and the scale c of the residual [p - c min(p / rho, q)]+, both float [B, M], for p and q [B, M,
    V]. With beta = sum min(p / rho, q), the smallest valid rho solves 1 - (1 - beta)^n = rho beta, n int64 [B, M]
    children. A bisection on [1, n] returns its valid end, which is exact and loses at most (n - 1) / 2^STEPS in rho."""
    check_laws(p, q)
    expect("count", count, INDEX, *p.shape[:2])
    if isinstance(p, LogLaw) or on_kernels(p):
        from mmspec.kernels.gpu.sibling_thresholds import launch_kseq

        return launch_kseq(p, q, count, STEPS)
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
    """Return the unnormalised [p - c min(p / rho, q)]+, or p where that is empty or NaN; p and q [B, V], rho and c [B]."""
    rest = (p - scale[:, None] * torch.minimum(p / rho[:, None], q)).clamp_min(0)
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)


def _overlap(p: Tensor, q: Tensor, rho: Tensor) -> Tensor:
    return (torch.minimum(p, q * rho[..., None]).sum(-1) / rho).clamp(TINY, 1)


def _any_of(beta: Tensor, count: Tensor) -> Tensor:
    """Return 1 - (1 - beta)^n without cancellation, 0 for n = 0."""
    return -torch.special.xlog1py(count, -beta).expm1()
