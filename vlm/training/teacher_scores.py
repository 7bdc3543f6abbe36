"""The target's scores at the trained places, computed once per place over the drafter's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.vlm.training.chunked_losses import map_chunks


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """The target's scores at m places. For a reduced vocabulary the scores are stored. For the whole vocabulary only
    the states are stored, and a call runs the head over its distinct places."""

    head: nn.Module
    states: Tensor  # float [m, H], its inputs
    vocabulary: Tensor | None = None  # int64 [k], the ascending ids of the drafter's tokens; None for all tokens
    scores: Tensor | None = None  # float32 [m, k], the log-weights of these tokens; None for all tokens
    mass: Tensor | None = None  # float32 [m], the log-probability of these tokens together; only for `overlap`

    @classmethod
    @torch.no_grad()
    def of(cls, head: nn.Module, states: Tensor, vocabulary: Tensor | None, with_mass: bool = False) -> Self:
        """Return the scores of `head` at states [m, H]; `with_mass` if `overlap` will be called. Only the rows of a
        `vocabulary`, ascending ids int64 [k] or None for all, of a plain linear head are used, unless the mass is
        needed."""
        if vocabulary is None:
            return cls(head, states)
        if not with_mass and type(head) is nn.Linear:  # any other head may do more than a product
            bias = None if head.bias is None else head.bias[vocabulary]
            scores = F.linear(states.to(head.weight.dtype), head.weight[vocabulary], bias).float()
            return cls(head, states, vocabulary, scores)

        def reduced(places: Tensor) -> tuple[Tensor, Tensor]:
            whole = head(states[places]).float()
            part = whole[:, vocabulary]
            return part, part.logsumexp(-1) - whole.logsumexp(-1)

        scores, mass = map_chunks(reduced, len(states), _words(head), states.device)
        return cls(head, states, vocabulary, scores, mass)

    @property
    def width(self) -> int:
        return _words(self.head) if self.scores is None else self.scores.shape[1]

    @torch.no_grad()
    def __call__(self, places: Tensor) -> Tensor:
        """Return the log-weights at places int64 [n], float32 [n, k] or [n, V]; repeated places share a pass of the
        head."""
        if self.scores is not None:
            return self.scores[places]
        distinct, row = places.unique(return_inverse=True)
        return self.head(self.states[distinct]).float()[row]

    def columns(self, token: Tensor) -> Tensor:
        """Return the columns of tokens int64 [n]; -100 for tokens outside the drafter's vocabulary."""
        if self.vocabulary is None:
            return token
        column = torch.searchsorted(self.vocabulary, token).clamp(max=len(self.vocabulary) - 1)
        return torch.where(self.vocabulary[column] == token, column, -100)

    @torch.no_grad()
    def overlap(self, student: Tensor, teacher: Tensor, places: Tensor) -> Tensor:
        """Return the probability that a token drawn by the drafter is accepted at places int64 [n], float32 [n]: the
        sum of min(q, p). Both log-weights are of the same tokens, float32 [n, k or V]."""
        p = teacher.log_softmax(-1) if self.mass is None else teacher.log_softmax(-1) + self.mass[places, None]
        return torch.minimum(student.softmax(-1), p.exp()).sum(-1)


def _words(head: nn.Module) -> int:
    """Return the number of scores of a head; a head around another has those of the inner matrix."""
    return max(len(weight) for weight in head.parameters() if weight.ndim == 2)
