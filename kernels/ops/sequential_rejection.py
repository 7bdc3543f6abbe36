"""Sequential rejection of siblings: two scalars per node hold the whole residual.

Unreachable nodes (after a weight of 1) have finite values that are never used. NaN in a distribution makes its
children's weights NaN, which pass nothing. Kernels reject the children of a whole tree (`reject_tree`); the references
go rank by rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.kernels.dispatch import BOOL, INDEX, WIDE, expect, expect_rows
from mmspec.kernels.law import check_laws, residual_mass
from mmspec.kernels.log_law import TINY, LogLaw, RejectionOrder


def mass_left(q: Tensor, token: Sequence[Tensor], drawn: Sequence[Tensor] | None) -> list[Tensor]:
    """Return the mass of q before each rank of children, after earlier children's tokens are removed: per rank [B, n],
    1 at rank 0. It is summed over the remaining tokens, not subtracted from 1: nearly all of q may be on the first
    child. q is [B, M, V], sorted by falling number of children; per rank, `token` int64 and `drawn` bool are [B, n]."""
    if not token:
        return []
    check_ranks("token", token, INDEX, q.shape)
    if drawn is not None:
        check_ranks("drawn", drawn, BOOL, q.shape)
    left = [torch.ones_like(token[0], dtype=q.dtype)]
    q = q.clone() if len(token) > 1 else q
    for rank in range(1, len(token)):
        count = token[rank].shape[1]
        index = token[rank - 1][:, :count, None]
        rest = 0.0
        if drawn is not None:
            rest = torch.where(drawn[rank - 1][:, :count, None], 0.0, q[:, :count].gather(2, index))
        left.append(q[:, :count].scatter_(2, index, rest).sum(-1).clamp_min_(TINY))
    return left


def reject_siblings(
    p: Tensor, q: Tensor, weight: Tensor, child: Sequence[Tensor], drawn: Sequence[Tensor] | None
) -> tuple[list[Tensor], Tensor]:
    """Return the weights [B, n] of the children per rank, and a, A and B of the M nodes, [3, B, M], after all
    rejections. Let r = [alpha p - beta q]+ be the residual before a child x, s its distribution (q, or the remaining q,
    renormalised) and a the node's weight. The child's weight is min(1, a r(x) / s(x)), or 0 where q(x) is 0. Its
    rejection gives Z = sum [a r - s]+, then a <- Z / (Z + 1 - a) and r <- [a r - s]+ / Z. A = a alpha and B = a beta
    need no division by Z. Nodes of weight 1 stay at weight 1, as in recursive rejection. p and q [B, M, V] are sorted
    by falling number of children; `weight` is [B, M]. Per rank, `child` float [4, B, n] holds p, q and s at the child's
    token, and s / q; `drawn` is bool [B, n]."""
    check_laws(p, q)
    expect("weight", weight, WIDE, *p.shape[:2])
    for rank, values in enumerate(child):
        expect(f"child[{rank}]", values, WIDE, 4, p.shape[0], None)
    if drawn is not None:
        check_ranks("drawn", drawn, BOOL, p.shape)
    state = torch.stack((weight, weight, torch.zeros_like(weight)))
    accepted = []
    for rank, values in enumerate(child):
        count = values.shape[2]
        px, qx, share, scale = values.unbind()
        part = state[:, :, :count]
        a, upper, lower = part.unbind()
        accept = torch.addcmul(upper * px, lower, qx, value=-1).div_(share).clamp_(0, 1).masked_fill_(qx == 0, 0.0)
        before = None if drawn is None else part.clone()
        lower += scale
        mass = residual_mass(p[:, :count], q[:, :count], upper, lower)
        # 0 only where rejection cannot happen: later values are finite and never used
        room = (1 - a).add_(mass).clamp_min_(TINY)
        a.copy_(mass)
        part /= room
        if before is not None:
            accept = torch.where(drawn[rank], accept, 0.0)
            part.copy_(torch.where(drawn[rank], part, before))
        accepted.append(accept)
    return accepted, state


def check_ranks(name: str, ranks: Sequence[Tensor], dtypes: frozenset[torch.dtype], shape: Sequence[int]) -> None:
    """Check that every rank is [B, n], with n at most that of the rank before."""
    most = shape[1]
    for rank, tensor in enumerate(ranks):
        expect(f"{name}[{rank}]", tensor, dtypes, shape[0], None)
        if tensor.shape[1] > most:
            raise ValueError(
                f"{name}[{rank}]: expected at most {most} columns (nodes with most children first), got "
                f"{tensor.shape[1]}"
            )
        most = tensor.shape[1]


def reject_chain(p: Tensor, q: Tensor, weight: Tensor, child: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
    """Do the same as `reject_siblings` along a chain, bit for bit: operations as wide as the vocabulary run once for
    all nodes. Where kernels run, calls per node are used. p and q are dense [B, M, V], weight [B, 1] of the first node,
    child [4, B, M], drawn bool [B, M]. Return the children's weights [B, M]; and a, A and B of the nodes, [3, B, M]."""
    check_laws(p, q)
    expect("weight", weight, WIDE, p.shape[0], 1)
    expect("child", child, WIDE, 4, *p.shape[:2])
    if drawn is not None:
        expect("drawn", drawn, BOOL, *p.shape[:2])
    px, qx, share, scale = child.unbind()
    px = torch.where(qx == 0, 0.0, px)
    along = [weight]
    for node in range(px.shape[1]):
        here = slice(node, node + 1)
        accept = (along[-1] * px[:, here]).div_(share[:, here]).clamp_(0, 1)
        along.append(accept if drawn is None else torch.where(drawn[:, here], accept, 0.0))
    a, accepted = torch.cat(along[:-1], 1), torch.cat(along[1:], 1)
    mass = residual_mass(p, q, a, scale)
    room = (1 - a).add_(mass).clamp_min_(TINY)
    state = torch.stack((mass, a, scale)).div_(room)
    if drawn is not None:
        state = torch.where(drawn, state, torch.stack((a, a, torch.zeros_like(a))))
    return accepted, state


def reject_tree(
    p: Tensor | LogLaw,
    q: Tensor | LogLaw,
    row: Tensor,
    child_p: Tensor,
    child_q: Tensor,
    token: Tensor,
    order: RejectionOrder,
    live: Tensor | None,
    post: bool,
    replacement: bool,
) -> Tensor:
    """Reject the children of every node of a tree, where kernels run, as `reject_siblings` does. With `post` the root
    is first, a parent starts at its own weight, and its first scalar replaces this weight; otherwise all are at weight
    1. p [B, N, V] is behind each node; `row` int64 [N] is that of q [B, M, V] for a node's children. `child_p` and
    `child_q` [B, N] are p and q of each node's own token, int64 [B, N]. `live` bool [B, N] marks the nodes that count,
    None for all; `replacement`: siblings were drawn with it. Return float [3, B, N]: the weight of every node, A and B;
    1 and 0 where a node has no children."""
    check_laws(p, q)
    expect("child_p", child_p, WIDE, *p.shape[:2])
    expect("child_q", child_q, WIDE, *p.shape[:2])
    expect("token", token, INDEX, *p.shape[:2])
    expect("row", row, INDEX, p.shape[1])
    expect_rows("child", order.child, p.shape[0], p.shape[1], None)
    if live is not None:
        expect("live", live, BOOL, *p.shape[:2])
    from mmspec.kernels.gpu.sequential_rejection import launch_reject_tree

    return launch_reject_tree(p, q, row, child_p, child_q, token, order, live, post, replacement)
