"""The log-weights of a growing draft: the drafter's own, under the constraints of the request."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.pool import SlotPool


class LevelwiseState(Protocol):
    """The state of a drafter that steps through a draft level by level.

    Attributes:
        root: float [B, H], the feature after the last committed value, from which depth 1 is drawn.
        cache: The drafter's own cache.
        independent: Whether each level's distribution does not depend on the values drafted above it.
        ids: int64 [k], ascending, the values behind the columns of `logits` and `law`; None for all.
    """

    root: Tensor
    cache: SlotPool
    independent: bool
    ids: Tensor | None

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """Return the log-weights of children, float32 [B, n, V or k].

        Args:
            out: [B, n, H], the features of their parents.
            depth: The depth of the children, from 1.
        """

    def law(self, out: Tensor, depth: int) -> Tensor:
        """Return the log-weights that a sampled request draws from: `logits` after the target's logits processors."""

    def feature(self, out: Tensor, depth: int) -> Tensor:
        """Return the features [B, n, F] behind the children at `depth`, for length controls."""

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return features [B, n, H] of a level of drafted nodes, which stay in the cache until the draft is complete.

        Args:
            token: int64 [B, n].
            hidden: [B, n, H], the features of their parents.
            ancestor: bool [R, n, back + n] over the drafted nodes in the cache; None on a chain.
            back: The number of drafted nodes in the cache.
            depth: The depth of these nodes, from 1.
        """


class DraftGuide(Protocol):
    """The request's own constraints on a drafter's scores, applied level by level."""

    def scores(self, scores: Tensor, token: Tensor, parent: Tensor, ids: Tensor | None) -> Tensor:
        """Return the constrained scores of a level of nodes, float32 [B, n, k]; minus infinity for excluded values.

        Args:
            scores: float32 [B, n, k], the drafter's log-weights for the children of the nodes.
            token: int64 [B, n], the nodes' own values; the root for the first call.
            parent: int64 [B, n], the index of each node's parent among the nodes of the last call.
            ids: int64 [k], the values behind the columns; None for all.
        """


def guide_of(target: object) -> DraftGuide | None:
    """Return the guide of a target's request, from its method `guide`; None without such a method or a constraint."""
    make = getattr(target, "guide", None)
    return None if make is None else make()


class LevelScores:
    """The log-weights of the levels of a draft, under the constraints of the request.

    Args:
        state: The drafter's state.
        target: The target.
        guide: The constraints, None without any.
        sampled: Whether values are drawn from the scores, which then pass the target's logits processors.
    """

    def __init__(self, state: LevelwiseState, target: object, guide: DraftGuide | None, sampled: bool):
        self.state, self.guide, self.sampled = state, guide, sampled
        self.token = target.pending[:, None]
        self.parent = torch.zeros_like(self.token)

    def scores(self, out: Tensor, depth: int) -> Tensor:
        """Return float32 [B, n, k] of the children at `depth` of nodes with features `out` [B, n, F]."""
        if self.guide is None:
            return self.state.law(out, depth) if self.sampled else self.state.logits(out, depth)
        return self.guide.scores(self.state.logits(out, depth), self.token, self.parent, self.state.ids)

    def descend(self, token: Tensor, parent: Tensor) -> None:
        """Continue with the nodes of values `token` int64 [B, n]; `parent` int64 [B or 1, n] indexes the previous nodes."""
        self.token, self.parent = token, parent.expand_as(token)


def drawable(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Replace scores [B, n, k] without any allowed value by zeros; return them and where that is, bool [B, n]."""
    barren = scores.amax(-1) == -torch.inf
    return torch.where(barren[..., None], 0.0, scores), barren
