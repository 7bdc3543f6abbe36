"""Siblings drawn one after the other and rejected one after the other: two scalars per node hold the whole residual."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.kernels.law import TINY, residual_mass


def reject_in_turn(
    p: Tensor,
    q: Tensor,
    weight: Tensor,
    child_p: Sequence[Tensor],
    child_q: Sequence[Tensor],
    token: Sequence[Tensor],
    drawn: Sequence[Tensor] | None,
    replacement: bool,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Weights of the children of M nodes, and the nodes' state once every child has been rejected.

    With r = [alpha p - beta q]+ the residual before a child x, s = q without the earlier siblings (unless drawn with
    replacement), renormalised by its mass `left`, and a the node's weight: the child's weight is min(1, a r(x) / s(x));
    its rejection gives Z = sum [a r - s]+, a <- Z / (Z + 1 - a), and r <- [a r - s]+ / Z. The scalars kept here are
    A = a alpha and B = a beta, which need no division by Z. Nodes of weight 1 keep weight 1: recursive rejection.

    p, q: float [B, M, V], law after the node and law its children were drawn from; nodes with most children first.
    weight: float [B, M].   child_p, child_q, token, drawn: per sibling rank [B, n] with n <= M not growing, for the first n
    nodes: p and q at the child's token, the token, and whether there is such a child (None: there is).
    Returns (per rank the child's weight [B, n]; a, A, B of the nodes, each [B, M]).
    """
    weight, up, down = weight.clone(), weight.clone(), torch.zeros_like(weight)
    rest = q if replacement or len(child_p) < 2 else q.clone()
    children = []
    for rank, (px, qx) in enumerate(zip(child_p, child_q, strict=True)):
        count = px.shape[1]
        a, upper, lower = weight[:, :count], up[:, :count], down[:, :count]
        there = None if drawn is None else drawn[rank]
        share = qx
        after = lower + 1
        if rank and not replacement:
            rest = _without(
                rest[:, :count], token[rank - 1][:, :count], None if drawn is None else drawn[rank - 1][:, :count]
            )
            left = rest.sum(-1).clamp_min(TINY)
            share, after = qx / left, lower + left.reciprocal()
        accept = ((upper * px - lower * qx) / share.clamp_min(TINY)).clamp_(0, 1)
        mass = residual_mass(p[:, :count], q[:, :count], upper, after)
        # 0 only where rejection cannot happen: what follows is finite and never used
        room = (mass + (1 - a)).clamp_min_(TINY)
        new = (mass / room, upper / room, after / room)
        if there is not None:
            accept = torch.where(there, accept, 0.0)
            new = tuple(torch.where(there, n, old) for n, old in zip(new, (a, upper, lower), strict=True))
        for old, n in zip((a, upper, lower), new, strict=True):
            old.copy_(n)
        children.append(accept)
    return children, weight, up, down


def _without(rest: Tensor, token: Tensor, drawn: Tensor | None) -> Tensor:
    """Sets the mass of `token` [B, n] to 0 in `rest` [B, n, V], in place, where it was drawn."""
    index = token[..., None]
    if drawn is None:
        return rest.scatter_(-1, index, 0.0)
    return rest.scatter_(-1, index, torch.where(drawn[..., None], 0.0, rest.gather(-1, index)))
