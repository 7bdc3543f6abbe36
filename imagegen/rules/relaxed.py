"""The verification of siblings rank by rank, for relaxed rules over image codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Draft
from mmspec.core.round.rules import Weights
from mmspec.core.round.rules.base import law_row
from mmspec.core.round.rules.siblings import gather_children, scatter_children, sibling_table
from mmspec.core.round.sampling import dense


@dataclass(slots=True)
class Siblings:
    """The children of a sibling rank of n parents."""

    token: Tensor  # int64 [B, n], the children's values
    child: Tensor  # int64 [n] or [B, n], the children's nodes, see `gather_children`
    p: Tensor  # float [B, n, V], the target's distribution at the parents
    law: Tensor  # float [B, n, V], its remainder after the earlier siblings were rejected
    share: Tensor | None  # float [B, n, V], that the child was drawn from; None where q is treated as 1
    exact: Tensor  # float [B, n], the exact rule's threshold

    def of(self, law: Tensor) -> Tensor:
        """Return a distribution [B, n, V] at the children's own values, [B, n]."""
        return law.gather(2, self.token[..., None])[..., 0]

    def own_share(self) -> Tensor:
        """Return the share at the children's own values, float [B, n], 1 where q is treated as 1."""
        return torch.ones_like(self.exact) if self.share is None else self.of(self.share)


def siblingwise(
    weights: Weights,
    draft: Draft,
    live: Tensor | None,
    ratio: Callable[[Siblings], Tensor],
    reject: Callable[[Siblings], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Verify the siblings rank by rank, each rank at all parents at once. Return ratios [B, N], 0 at nodes that do not
    count (`live` bool [B, N]), and the distributions [B, N, V] behind every node. `ratio` returns float [B, n];
    `reject` [B, n, V] after a rejection, None is [law - share]+, computed only for parents with another child."""
    tree, p, fan = draft.tree, dense(weights.p), sibling_table(draft.tree)
    token = draft.value.clamp(0, p.shape[-1] - 1)
    live = torch.ones_like(token, dtype=torch.bool) if live is None else live
    exact = weights.threshold
    if not tree.static:  # the last column is for missing children
        token, live, exact = (pad(t, (0, 1)) for t in (token, live, exact))
    ratios = torch.zeros_like(exact)
    chain = tree.static and not tree.max_rank  # the parents are in order
    parents = law = p[:, :-1] if chain else p.index_select(1, fan.node)
    share = None
    if draft.law.kind == "categorical":
        share = dense(weights.q.index_select(1, law_row(draft)[fan.node]))
    tried: list[Tensor] = []
    for rank, child in enumerate(fan.child):
        count = child.shape[-1]
        siblings = Siblings(
            gather_children(token, child),
            child,
            parents[:, :count],
            law[:, :count],
            None if share is None else share[:, :count],
            gather_children(exact, child),
        )
        drawn = gather_children(live, child)
        if share is None:  # a token that appears twice among siblings counts once
            for earlier in tried:
                drawn = drawn & (siblings.token != earlier[:, :count])
            tried.append(torch.where(drawn, siblings.token, -1))
        possible = drawn & (siblings.own_share() != 0)  # no value passes that its recorded distribution cannot draw
        scatter_children(ratios, child, torch.where(possible, ratio(siblings), 0.0))
        if reject is None and rank + 1 == len(fan.child):
            break
        after = torch.where(drawn[..., None], (reject or subtract_share)(siblings), siblings.law)
        law = torch.cat((after, law[:, count:]), 1)
        if share is not None:
            share = torch.cat((_share_after(siblings, drawn), share[:, count:]), 1)
    return ratios[:, : tree.nodes], p if reject is None else p.index_copy(1, fan.node, law)


def subtract_share(siblings: Siblings) -> Tensor:
    """Return [law - share]+ normalised, or the target's where empty; a one-hot share removes its token."""
    if siblings.share is None:
        rest = siblings.law.scatter(2, siblings.token[..., None], 0.0)
    else:
        rest = (siblings.law - siblings.share).clamp_min_(0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, siblings.p)


def _share_after(siblings: Siblings, drawn: Tensor) -> Tensor:
    """Return the share of the next sibling: tried values are removed and the rest is scaled up."""
    rest = siblings.share.scatter(
        2, siblings.token[..., None], torch.where(drawn, 0.0, siblings.own_share())[..., None]
    )
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, rest)
