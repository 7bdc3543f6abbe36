"""Siblings drawn one after the other and rejected one after the other: two scalars per node hold the whole residual."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.kernels.law import TINY, residual_mass


def mass_left(q: Tensor, token: Sequence[Tensor], drawn: Sequence[Tensor] | None) -> list[Tensor]:
    """What q keeps before each rank of children, when every child takes its token away: per rank [B, n], 1 at rank 0.

    q: float [B, M, V], the nodes with most children first.   token, drawn: per rank [B, n] for the first n nodes, the
    child's token and whether there is such a child (None: there is). Summed over what is left rather than subtracted from
    1: nearly all of q may lie on the first child.
    """
    if not token:
        return []
    left = [torch.ones_like(token[0], dtype=q.dtype)]
    q = q.clone() if len(token) > 1 else q
    for rank in range(1, len(token)):
        count = token[rank].shape[1]
        index = token[rank - 1][:, :count, None]
        gone = 0.0
        if drawn is not None:
            gone = torch.where(drawn[rank - 1][:, :count, None], 0.0, q[:, :count].gather(2, index))
        left.append(q[:, :count].scatter_(2, index, gone).sum(-1).clamp_min_(TINY))
    return left


def reject_in_turn(
    p: Tensor, q: Tensor, weight: Tensor, child: Sequence[Tensor], drawn: Sequence[Tensor] | None
) -> tuple[list[Tensor], Tensor]:
    """Weights of the children of M nodes, and the nodes' state once every child has been rejected.

    With r = [alpha p - beta q]+ the residual before a child x, s its law (q, or what q keeps, renormalised) and a the
    node's weight: the child's weight is min(1, a r(x) / s(x)); its rejection gives Z = sum [a r - s]+, then
    a <- Z / (Z + 1 - a) and r <- [a r - s]+ / Z. The scalars kept here are A = a alpha and B = a beta, which need no
    division by Z. Nodes of weight 1 keep weight 1: that is recursive rejection.

    p, q: float [B, M, V], law after the node and law its children were drawn from; nodes with most children first.
    weight: float [B, M].   child, drawn: per sibling rank, for the first n nodes: float [4, B, n], p, q and s at the
    child's token and s / q; bool [B, n], whether there is such a child (None: there is).
    Returns (per rank the child's weight [B, n]; a, A and B of the nodes [3, B, M]).
    """
    state = torch.stack((weight, weight, torch.zeros_like(weight)))
    accepted = []
    for rank, values in enumerate(child):
        count = values.shape[2]
        px, qx, share, scale = values.unbind()
        part = state[:, :, :count]
        a, upper, lower = part.unbind()
        accept = torch.addcmul(upper * px, lower, qx, value=-1).div_(share).clamp_(0, 1)
        before = None if drawn is None else part.clone()
        lower += scale
        mass = residual_mass(p[:, :count], q[:, :count], upper, lower)
        # 0 only where rejection cannot happen: what follows is finite and never used
        room = (1 - a).add_(mass).clamp_min_(TINY)
        a.copy_(mass)
        part /= room
        if before is not None:
            accept = torch.where(drawn[rank], accept, 0.0)
            part.copy_(torch.where(drawn[rank], part, before))
        accepted.append(accept)
    return accepted, state
