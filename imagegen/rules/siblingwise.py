"""Sibling-wise judging: one sibling after the other with whole laws in hand, for rules that look at other values than the
drafted one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.draft import Draft
from mmspec.core.rules import Weights
from mmspec.core.rules.fan import fan_of, put, take
from mmspec.core.rules.laws import law_row
from mmspec.core.sample import dense


@dataclass(slots=True)
class Siblings:
    """The children of one sibling rank of n parents.

    token: int64 [B, n].   child: int64 [n] or [B, n], which nodes they are, see `take`.
    p: float [B, n, V], the target's law at the parents.   law: [B, n, V], what is left of it after
    the earlier siblings were rejected.   share: [B, n, V], the law the child was drawn from, None where q is treated as 1.
    exact: [B, n], the exact rule's threshold.
    """

    token: Tensor
    child: Tensor
    p: Tensor
    law: Tensor
    share: Tensor | None
    exact: Tensor

    def of(self, law: Tensor) -> Tensor:
        """law [B, n, V] at the children's own tokens, [B, n]."""
        return law.gather(2, self.token[..., None])[..., 0]

    def own_share(self) -> Tensor:
        """float [B, n], s(x), or ones."""
        return torch.ones_like(self.exact) if self.share is None else self.of(self.share)


def siblingwise(
    weights: Weights,
    draft: Draft,
    live: Tensor | None,
    ratio: Callable[[Siblings], Tensor],
    reject: Callable[[Siblings], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Judges every sibling rank at all parents at once.

    weights: the exact rule's.   live: bool [B, N] or None.   ratio(siblings): float [B, n].
    reject(siblings): the law [B, n, V] that the rejection of these children leaves; None for [law - share]+, which is then
    worked out only for parents with another child.
    Returns (ratios [B, N], 0 at nodes that do not count; the laws [B, N, V] that `reject` leaves behind every node).
    """
    tree, p, fan = draft.tree, dense(weights.p), fan_of(draft.tree)
    token = draft.value.clamp(0, p.shape[-1] - 1)
    live = torch.ones_like(token, dtype=torch.bool) if live is None else live
    exact = weights.threshold
    if not tree.static:  # the last column stands for the children a parent lacks
        token, live, exact = (pad(t, (0, 1)) for t in (token, live, exact))
    found = torch.zeros_like(exact)
    chain = tree.static and not tree.max_rank  # whose parents lie in order
    parents = law = p[:, :-1] if chain else p.index_select(1, fan.node)
    share = None
    if draft.law.kind == "categorical":
        share = dense(weights.q.index_select(1, law_row(draft)[fan.node]))
    tried: list[Tensor] = []
    for rank, child in enumerate(fan.child):
        count = child.shape[-1]
        siblings = Siblings(take(token, child), child, parents[:, :count], law[:, :count],
                    None if share is None else share[:, :count], take(exact, child))  # fmt: skip
        drawn = take(live, child)
        if share is None:  # a token that stands twice among siblings counts once
            for earlier in tried:
                drawn = drawn & (siblings.token != earlier[:, :count])
            tried.append(torch.where(drawn, siblings.token, -1))
        put(found, child, torch.where(drawn, ratio(siblings), 0.0))
        if reject is None and rank + 1 == len(fan.child):
            break
        after = torch.where(drawn[..., None], (reject or subtract)(siblings), siblings.law)
        law = torch.cat((after, law[:, count:]), 1)
        if share is not None:
            share = torch.cat((_without(siblings, drawn), share[:, count:]), 1)
    return found[:, : tree.nodes], p if reject is None else p.index_copy(1, fan.node, law)


def subtract(siblings: Siblings) -> Tensor:
    """[law - share]+ normalised, the target's law where that is empty. One-hot shares take their token away."""
    if siblings.share is None:
        rest = siblings.law.scatter(2, siblings.token[..., None], 0.0)
    else:
        rest = (siblings.law - siblings.share).clamp_min_(0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, siblings.p)


def _without(siblings: Siblings, drawn: Tensor) -> Tensor:
    """The share of the next sibling: what was tried is gone, the rest is scaled up."""
    rest = siblings.share.scatter(
        2, siblings.token[..., None], torch.where(drawn, 0.0, siblings.own_share())[..., None]
    )
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, rest)
