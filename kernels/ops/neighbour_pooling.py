"""Pooled weights of drafted image codes and their neighbours: the arithmetic of LANTERN and Grouped Speculative
Decoding.

Sums run in the dtype of the distributions: neighbours in the table's order, members in order of rank. Codes without a
row in the table have no neighbours. Of equally likely codes the lower id ranks higher. A law of NaN adds nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.dispatch import INDEX, WIDE, expect, expect_dense, on_kernels
from mmspec.kernels.law import mass_at_reference, ratio_of
from mmspec.kernels.log_law import LogLaw


def borrowed_mass(law: Tensor, token: Tensor, table: Tensor, budget: Tensor) -> Tensor:
    """Return the mass of the longest run of nearest codes within the budget, float [B, n], as the budget; `law` [B, n,
    V], token int64 [B, n], table int64 [K, k], nearest first, K <= V."""
    expect("law", law, WIDE, None, None, None)
    expect_dense("law", law)
    expect("token", token, INDEX, *law.shape[:2])
    expect("table", table, INDEX, None, None)
    expect("budget", budget, WIDE, *law.shape[:2])
    if on_kernels(law):
        from mmspec.kernels.gpu.neighbour_pooling import launch_borrowed

        return launch_borrowed(law, token, table, budget)
    return borrowed_mass_reference(law, token, table, budget)


def borrowed_mass_reference(law: Tensor, token: Tensor, table: Tensor, budget: Tensor) -> Tensor:
    near = table[token.clamp_max(len(table) - 1)]
    total = law.gather(2, near).cumsum(-1)
    total = torch.where(total <= budget[..., None], total, 0.0).amax(-1)
    return torch.where(token < len(table), total, 0.0)  # special tokens have no neighbours


def borrowing_thresholds(
    p: Tensor | LogLaw,
    q: Tensor | LogLaw | None,
    row: Tensor,
    token: Tensor,
    exact: Tensor,
    table: Tensor,
    budget: tuple[float, float],
    live: Tensor | None,
) -> Tensor:
    """Return min(1, (p(x) + C) / q(x)) of the nodes of a chain, float [B, N]; C is the borrowed mass of each node's
    code x, in `token` int64 [B, N]. p is [B, N, V], q [B, M, V], None where it is treated as 1; row int64 [N] is q's
    for the node behind each node. `table` int64 [K, k], K <= V, holds each code's neighbours, the nearest first. The
    budget is a constant plus a factor of p(x). Nodes that borrow nothing keep the threshold in `exact` [B, N]. The root
    and nodes that do not count in `live` bool [B, N], None for all, have 0."""
    expect("token", token, INDEX, *p.shape[:2])
    expect("exact", exact, WIDE, *p.shape[:2])
    expect("row", row, INDEX, p.shape[1])
    expect("table", table, INDEX, None, None)
    if isinstance(p, LogLaw) or on_kernels(exact):
        from mmspec.kernels.gpu.neighbour_pooling import launch_borrowing

        return launch_borrowing(p, q, row, token, exact, table, budget, live)
    return borrowing_thresholds_reference(p, q, row, token, exact, table, budget, live)


def borrowing_thresholds_reference(
    p: Tensor,
    q: Tensor | None,
    row: Tensor,
    token: Tensor,
    exact: Tensor,
    table: Tensor,
    budget: tuple[float, float],
    live: Tensor | None,
) -> Tensor:
    token, law = token.clamp(0, p.shape[-1] - 1)[:, 1:], p[:, :-1]
    mass = law.gather(2, token[..., None])[..., 0]
    share = torch.ones_like(mass) if q is None else mass_at_reference(q, row[:-1][None], token)
    more = borrowed_mass_reference(law, token, table, budget[0] + budget[1] * mass)
    raised = torch.where(more > 0, ratio_of(mass + more, share).clamp_max(1), exact[:, 1:])
    raised = raised if live is None else torch.where(live[:, 1:], raised, 0.0)
    return torch.nn.functional.pad(raised, (1, 0))


def ranked_window(p: Tensor, token: Tensor, below: int, above: int) -> tuple[Tensor, Tensor]:
    """Return the codes around a code in the ranking of p [B, n, V], int64 [B, n, below + above], and their p. Less
    likely codes have a positive p. Past the ends of the ranking p is -Inf and Inf."""
    expect("p", p, WIDE, None, None, None)
    expect_dense("p", p)
    expect("token", token, INDEX, *p.shape[:2])
    if on_kernels(p):
        from mmspec.kernels.gpu.neighbour_pooling import launch_window

        return launch_window(p, token, below, above)
    return ranked_window_reference(p, token, below, above)


def ranked_window_reference(p: Tensor, token: Tensor, below: int, above: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(p.shape[-1], device=p.device)
    here, own = token[..., None], p.gather(2, token[..., None])
    equal = p == own
    after = ((p < own) | (equal & (index > here))) & (p > 0)
    ahead = (p > own) | (equal & (index < here))
    lower = p.masked_fill(~after, -torch.inf).topk(below, -1)
    upper = p.masked_fill(~ahead, torch.inf).topk(above, -1, largest=False)
    return torch.cat((lower.indices, upper.indices), -1), torch.cat((lower.values, upper.values), -1)


def pooled_mass(law: Tensor, token: Tensor, member: Tensor, inside: Tensor) -> Tensor:
    """Return the probability of the token int64 [B, n] and its members int64 [B, n, G] marked `inside`, float [B, n]."""
    expect("law", law, WIDE, *token.shape, None)
    expect_dense("law", law)
    expect("member", member, INDEX, *token.shape, None)
    expect("inside", inside, frozenset({torch.bool}), *member.shape)
    if on_kernels(law):
        from mmspec.kernels.gpu.neighbour_pooling import launch_pooled

        return launch_pooled(law, token, member, inside)
    return pooled_mass_reference(law, token, member, inside)


def pooled_mass_reference(law: Tensor, token: Tensor, member: Tensor, inside: Tensor) -> Tensor:
    own = law.gather(2, token[..., None])[..., 0]
    return own + torch.where(inside, law.gather(2, member), 0.0).sum(-1)
