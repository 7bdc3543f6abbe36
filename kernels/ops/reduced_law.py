"""Laws of a drafter that knows part of the vocabulary: its own tokens and their probabilities, never spread over all.

A rule compares such a law q with the target's p. Outside of its tokens q is 0, so that p counts there only as a whole: every
sum over the vocabulary that a rule takes is a sum over the drafter's tokens and one place for all others. With 4,096 of
49,152 tokens a sampled tree is verified with a twelfth of the work and memory. Only the residual behind the accepted node is
as wide as the vocabulary, once a row.

These are laws of the reference ops. Kernels work a probability out where they need it, and take spread scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True, eq=False)
class ReducedLaw:
    """Laws [B, M, V] that are 0 but at some tokens.

    mass: float [B, M, k], the probabilities of these.   ids: int64 [k], rising.   vocab: V.
    """

    mass: Tensor
    ids: Tensor
    vocab: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.mass.shape[:-1], self.vocab))

    @property
    def dtype(self) -> torch.dtype:
        return self.mass.dtype

    @property
    def device(self) -> torch.device:
        return self.mass.device

    def index_select(self, dim: int, index: Tensor) -> ReducedLaw:
        """The rows int64 [m] of these, as `Tensor.index_select` along axis 1."""
        if dim != 1:
            raise ValueError(f"dim: expected 1, the axis of rows, got {dim}")
        return ReducedLaw(self.mass.index_select(1, index), self.ids, self.vocab)

    def place(self, token: Tensor) -> Tensor:
        """The column of each token int64 [...] in `mass`, and k for tokens that are not in it."""
        count = len(self.ids)
        at = torch.searchsorted(self.ids, token)
        return torch.where(self.ids[at.clamp(max=count - 1)] == token, at, count)

    def spread(self, mass: Tensor) -> Tensor:
        """Probabilities [..., k] of the drafter's tokens as [..., V]."""
        return mass.new_zeros(*mass.shape[:-1], self.vocab).index_copy_(-1, self.ids, mass)

    def with_rest(self) -> Tensor:
        """float [B, M, k + 1], the probabilities and the 0 of all other tokens together."""
        return pad(self.mass, (0, 1))

    def lumped(self, p: Tensor) -> Tensor:
        """A law [B, N, V] over the drafter's tokens and all others together, float [B, N, k + 1]."""
        own = p.index_select(2, self.ids)
        rest = (p.sum(-1) - own.sum(-1)).clamp_min_(0)
        return torch.cat((own, rest[..., None]), -1)


def spread_scores(scores: Tensor, ids: Tensor, vocab: int) -> Tensor:
    """Scores [..., k] of some tokens at their places in [..., V], minus infinity elsewhere. ids: int64 [k]."""
    return scores.new_full((*scores.shape[:-1], vocab), -torch.inf).index_copy_(-1, ids, scores)
