"""The log-weights of a growing draft: the drafter's own, under the request's constraints where it has any."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.pool import SlotPool


class LevelwiseState(Protocol):
    """The state of a drafter that steps through a draft level by level.

    Attributes:
        root: float [B, H], the feature behind the last committed value, from which depth 1 is drawn.
        cache: The drafter's own.
        independent: Whether each level's law is the same whatever was drafted above it.
        ids: int64 [k], rising, the values that the columns of `logits` and `law` stand for; None for all.
    """

    root: Tensor
    cache: SlotPool
    independent: bool
    ids: Tensor | None

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """The log-weights of children.

        Args:
            out: [B, n, H], the features of their parents.
            depth: Of the children, from 1.

        Returns:
            float32 [B, n, V or k].
        """

    def law(self, out: Tensor, depth: int) -> Tensor:
        """The log-weights a sampled request draws from: `logits` warped as the target warps its own."""

    def feature(self, out: Tensor, depth: int) -> Tensor:
        """The features [B, n, F] that the children at `depth` are drawn from, for length controls."""

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Features [B, n, H] of one level of drafted nodes, which stay in the cache until the draft is complete.

        Args:
            token: int64 [B, n].
            hidden: [B, n, H], the features of their parents.
            ancestor: bool [R, n, back + n] over the drafted nodes in the cache; None on a chain.
            back: The number of drafted nodes in the cache.
            depth: Of these nodes, from 1.
        """


class DraftGuide(Protocol):
    """The request's own constraints on a drafter's scores, applied level by level."""

    def scores(self, scores: Tensor, token: Tensor, parent: Tensor, ids: Tensor | None) -> Tensor:
        """The constrained scores of one level of nodes.

        Args:
            scores: float32 [B, n, k], the drafter's log-weights for the children of the nodes.
            token: int64 [B, n], the nodes' own values; the root for the first call.
            parent: int64 [B, n], the place of each node's parent among the nodes of the last call.
            ids: int64 [k], the values that the columns stand for; None for all.

        Returns:
            float32 [B, n, k], minus infinity for values that are ruled out.
        """


def guide_of(target: object) -> DraftGuide | None:
    """The guide of a target's request, from its method `guide`; None where it has no such method or no constraint."""
    make = getattr(target, "guide", None)
    return None if make is None else make()


class LevelScores:
    """The log-weights of the levels of one draft, under the request's constraints where it has any.

    sampled: whether the values are drawn from them, so that they go through what warps the target's own.
    """

    def __init__(self, state: LevelwiseState, target: object, guide: DraftGuide | None, sampled: bool):
        self.state, self.guide, self.sampled = state, guide, sampled
        self.token = target.pending[:, None]
        self.parent = torch.zeros_like(self.token)

    def scores(self, out: Tensor, depth: int) -> Tensor:
        """float32 [B, n, k] of the children at `depth` of nodes with features `out` [B, n, F]."""
        if self.guide is None:
            return self.state.law(out, depth) if self.sampled else self.state.logits(out, depth)
        return self.guide.scores(self.state.logits(out, depth), self.token, self.parent, self.state.ids)

    def descend(self, token: Tensor, parent: Tensor) -> None:
        """Go on to the nodes with these values int64 [B, n]; parent: int64 [B or 1, n], places among the nodes before."""
        self.token, self.parent = token, parent.expand_as(token)


def drawable(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [B, n, k] with zeros where every value is ruled out, and bool [B, n], where that is."""
    barren = scores.amax(-1) == -torch.inf
    return torch.where(barren[..., None], 0.0, scores), barren
