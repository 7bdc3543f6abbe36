"""Siblings drawn one after the other and rejected one after the other: two scalars per node hold the whole residual.

Unreachable nodes (an earlier weight of 1) give finite values that are never used. NaN in a law makes NaN of its children's
weights, which pass nothing. On kernels a call is one launch whatever the number of siblings, and two a rank where a row is
wider than a span.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.kernels.dispatch import BOOL, INDEX, WIDE, expect, on_kernels
from mmspec.kernels.law import check_laws, residual_mass
from mmspec.kernels.log_law import TINY, LogLaw


def mass_left(q: Tensor | LogLaw, token: Sequence[Tensor], drawn: Sequence[Tensor] | None) -> list[Tensor]:
    """What q keeps before each rank of children, when every child takes its token away: per rank [B, n], 1 at rank 0.

    q: float [B, M, V], the nodes with most children first.   token, drawn: per rank [B, n] for the first n nodes, the
    child's token and whether there is such a child (None: there is). Summed over what is left rather than subtracted from
    1: nearly all of q may lie on the first child.
    """
    if not token:
        return []
    check_ranks("token", token, INDEX, q.shape)
    if drawn is not None:
        check_ranks("drawn", drawn, BOOL, q.shape)
    if isinstance(q, LogLaw) or on_kernels(q):
        from mmspec.kernels.gpu.sequential_rejection import launch_mass_left

        return launch_mass_left(q, token, drawn)
    return mass_left_reference(q, token, drawn)


def mass_left_reference(q: Tensor, token: Sequence[Tensor], drawn: Sequence[Tensor] | None) -> list[Tensor]:
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


def reject_siblings(
    p: Tensor | LogLaw, q: Tensor | LogLaw, weight: Tensor, child: Sequence[Tensor], drawn: Sequence[Tensor] | None
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
    check_laws(p, q)
    expect("weight", weight, WIDE, *p.shape[:2])
    for rank, values in enumerate(child):
        expect(f"child[{rank}]", values, WIDE, 4, p.shape[0], None)
    if drawn is not None:
        check_ranks("drawn", drawn, BOOL, p.shape)
    if isinstance(p, LogLaw) or on_kernels(p):
        from mmspec.kernels.gpu.sequential_rejection import launch_reject_siblings

        return launch_reject_siblings(p, q, weight, child, drawn)
    return reject_siblings_reference(p, q, weight, child, drawn)


def check_ranks(name: str, ranks: Sequence[Tensor], dtypes: frozenset[torch.dtype], shape: Sequence[int]) -> None:
    """Raises ValueError unless every rank is [B, n], n at most as many as the rank before has."""
    most = shape[1]
    for rank, tensor in enumerate(ranks):
        expect(f"{name}[{rank}]", tensor, dtypes, shape[0], None)
        if tensor.shape[1] > most:
            raise ValueError(f"{name}[{rank}]: expected at most {most} columns as nodes with most children come first, got "
                             f"{tensor.shape[1]}")  # fmt: skip
        most = tensor.shape[1]


def reject_siblings_reference(
    p: Tensor, q: Tensor, weight: Tensor, child: Sequence[Tensor], drawn: Sequence[Tensor] | None
) -> tuple[list[Tensor], Tensor]:
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


def reject_chain(p: Tensor, q: Tensor, weight: Tensor, child: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
    """`reject_siblings` along a chain, where every node has one child, which is the next node: the weights are a walk of one
    number a row, and what is as wide as the vocabulary is worked out for all nodes at once.

    p, q: float [B, M, V], written out: where kernels run, fans are a launch each.   weight: float [B, 1], of the first node.
    child: float [4, B, M].   drawn: bool [B, M] or None.
    Returns (the children's weights [B, M]; a, A and B of the nodes [3, B, M]), bitwise those of node after node.
    """
    check_laws(p, q)
    expect("weight", weight, WIDE, p.shape[0], 1)
    expect("child", child, WIDE, 4, *p.shape[:2])
    if drawn is not None:
        expect("drawn", drawn, BOOL, *p.shape[:2])
    px, _, share, scale = child.unbind()
    along = [weight]
    for node in range(px.shape[1]):
        here = slice(node, node + 1)
        accept = (along[-1] * px[:, here]).div_(share[:, here]).clamp_(0, 1)
        along.append(accept if drawn is None else torch.where(drawn[:, here], accept, 0.0))
    a, found = torch.cat(along[:-1], 1), torch.cat(along[1:], 1)
    mass = residual_mass(p, q, a, scale)
    room = (1 - a).add_(mass).clamp_min_(TINY)
    state = torch.stack((mass, a, scale)).div_(room)
    if drawn is not None:
        state = torch.where(drawn, state, torch.stack((a, a, torch.zeros_like(a))))
    return found, state
