from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.round.pool import SlotPool


class LevelwiseState(Protocol):
    root: Tensor  # float [B, H], the feature after the last committed value, from which depth 1 is drawn
    cache: SlotPool  # the drafter's own
    independent: bool  # no level's distribution depends on the values drafted above it
    ids: Tensor | None  # int64 [k], ascending, the values behind the columns of `logits` and `law`; None for all

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """Return log-weights of children at `depth` (from 1), float32 [B, n, V or k], for their parents' features."""

    def law(self, out: Tensor, depth: int) -> Tensor:
        """Return `logits` after the target's logits processors."""

    def feature(self, out: Tensor, depth: int) -> Tensor:
        """Return the features [B, n, F] behind the children at `depth`, for length controls."""

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return features [B, n, H] of drafted nodes at `depth` (from 1), which stay in the cache until the draft is
        complete. `hidden` [B, n, H] are their parents' features. `ancestor` is bool [R, n, back + n] over the `back`
        drafted nodes in the cache and these; None on a chain."""


class DraftGuide(Protocol):
    def scores(self, scores: Tensor, token: Tensor, parent: Tensor, ids: Tensor | None) -> Tensor:
        """Return constrained log-weights float32 [B, n, k] for the children of nodes with values `token` int64 [B, n],
        -Inf for excluded values. The first call has the root. `parent` int64 [B, n] indexes the nodes of the last call;
        `ids` int64 [k] are the values behind the columns."""


def guide_of(target: object) -> DraftGuide | None:
    """Return None where the target has no method `guide` or no constraint."""
    make = getattr(target, "guide", None)
    return None if make is None else make()


class LevelScores:
    """The log-weights under the constraints of the request; where `sampled`, they pass the target's logits processors."""

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
        """Continue with nodes int64 [B, n] whose `parent` int64 [B or 1, n] indexes the previous nodes."""
        self.token, self.parent = token, parent.expand_as(token)


def drawable(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Replace scores [B, n, k] without any allowed value by zeros; return them and where that is, bool [B, n]."""
    barren = scores.amax(-1) == -torch.inf
    return torch.where(barren[..., None], 0.0, scores), barren
