"""The target's scores at the places a drafter is trained on: computed once a place, over the tokens it can draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.vlm.architectures import Parts

PLACES = 256  # places whose scores over the whole vocabulary exist at the same time


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """The target's scores at m places.

    Attributes:
        scores: float [m, k], log-weights of the tokens that the drafter scores.
        counts: bool [m], whether the drafter scores the target's best token.
        vocabulary: int64 [k], rising ids of these tokens; None for all.
    """

    scores: Tensor
    counts: Tensor
    vocabulary: Tensor | None = None

    def columns(self, token: Tensor) -> Tensor:
        """The columns of tokens int64 [n]; -100 for those the drafter does not score."""
        if self.vocabulary is None:
            return token
        column = torch.searchsorted(self.vocabulary, token).clamp(max=len(self.vocabulary) - 1)
        return torch.where(self.vocabulary[column] == token, column, -100)


@torch.no_grad()
def teacher_scores(parts: Parts, last: Tensor, vocabulary: Tensor | None, best: Tensor | None = None) -> TeacherScores:
    """Apply the target's head to last hidden states.

    Args:
        parts: The target.
        last: float [m, H], the states its head reads.
        vocabulary: int64 [k], rising ids of the tokens to score; None for all.
        best: int64 [m], the target's best tokens where they are known, see `best_tokens`.
    """
    if vocabulary is None:
        return TeacherScores(parts.head(last).float(), torch.ones(len(last), dtype=torch.bool, device=last.device))
    if best is None:
        best = best_tokens(parts.head, last)
    scores = _scores_of(parts.head, last, vocabulary)
    return TeacherScores(scores, torch.isin(best, vocabulary), vocabulary)


@torch.no_grad()
def best_tokens(head: nn.Module, last: Tensor) -> Tensor:
    """The token of the highest score, int64 [m], of states [m, H]."""
    if not len(last):
        return torch.zeros(0, dtype=torch.long, device=last.device)
    return torch.cat([head(part).argmax(-1) for part in last.split(PLACES)])


def _scores_of(head: nn.Module, last: Tensor, vocabulary: Tensor) -> Tensor:
    if type(head) is nn.Linear:  # any other head may do more than a product
        bias = None if head.bias is None else head.bias[vocabulary]
        return F.linear(last.to(head.weight.dtype), head.weight[vocabulary], bias).float()
    parts = [head(part)[:, vocabulary].float() for part in last.split(PLACES)]
    return torch.cat(parts) if parts else last.new_zeros(0, len(vocabulary), dtype=torch.float32)
