"""The target's scores at the places a drafter is trained on: computed once a place, over the tokens it can draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PLACES = 256  # places whose scores over the whole vocabulary exist at the same time


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """The target's scores at m places.

    Those of a reduced vocabulary are kept. Of the whole vocabulary only the states are kept: a call runs the head over the
    distinct places that it is given.

    Attributes:
        head: The target's head.
        states: float [m, H], its inputs.
        counts: bool [m], whether the drafter scores the target's best token.
        vocabulary: int64 [k], rising ids of the tokens that the drafter scores; None for all.
        scores: float32 [m, k], log-weights of these tokens; None for all tokens.
    """

    head: nn.Module
    states: Tensor
    counts: Tensor
    vocabulary: Tensor | None = None
    scores: Tensor | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, head: nn.Module, states: Tensor, vocabulary: Tensor | None, best: Tensor | None = None) -> Self:
        """The scores of `head` at `states`.

        Args:
            head: The target's head.
            states: float [m, H].
            vocabulary: int64 [k], rising ids of the tokens to score; None for all.
            best: int64 [m], the target's best tokens where they are known, see `best_tokens`.
        """
        if vocabulary is None:
            return cls(head, states, torch.ones(len(states), dtype=torch.bool, device=states.device))
        if best is None:
            best = best_tokens(head, states)
        return cls(head, states, torch.isin(best, vocabulary), vocabulary, _reduced(head, states, vocabulary))

    @property
    def width(self) -> int:
        """The number of scores of a place."""
        return len(self.head.weight) if self.scores is None else self.scores.shape[1]

    @torch.no_grad()
    def __call__(self, places: Tensor) -> Tensor:
        """float32 [n, k] or [n, V], the log-weights at places int64 [n].   Sorted places share passes of the head."""
        if self.scores is not None:
            return self.scores[places]
        distinct, row = places.unique(return_inverse=True)
        return self.head(self.states[distinct]).float()[row]

    def columns(self, token: Tensor) -> Tensor:
        """The columns of tokens int64 [n]; -100 for those the drafter does not score."""
        if self.vocabulary is None:
            return token
        column = torch.searchsorted(self.vocabulary, token).clamp(max=len(self.vocabulary) - 1)
        return torch.where(self.vocabulary[column] == token, column, -100)


@torch.no_grad()
def best_tokens(head: nn.Module, states: Tensor) -> Tensor:
    """The token of the highest score, int64 [m], of states [m, H]."""
    if not len(states):
        return torch.zeros(0, dtype=torch.long, device=states.device)
    return torch.cat([head(part).argmax(-1) for part in states.split(PLACES)])


def _reduced(head: nn.Module, states: Tensor, vocabulary: Tensor) -> Tensor:
    if type(head) is nn.Linear:  # any other head may do more than a product
        bias = None if head.bias is None else head.bias[vocabulary]
        return F.linear(states.to(head.weight.dtype), head.weight[vocabulary], bias).float()
    parts = [head(part)[:, vocabulary].float() for part in states.split(PLACES)]
    return torch.cat(parts) if parts else states.new_zeros(0, len(vocabulary), dtype=torch.float32)
