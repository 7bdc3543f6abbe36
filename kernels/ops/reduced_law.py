"""Distributions of a drafter with a reduced vocabulary: its own tokens and their probabilities, never spread over all.

Outside the drafter's tokens q is 0, so p counts there only in total. Every sum over the vocabulary in a rule is thus a
sum over the drafter's tokens and a single entry for all others. With 4,096 of 49,152 tokens a sampled tree is verified
with a twelfth of the work and memory. Only the residual after the accepted node is as wide as the vocabulary, once per
row.

Only the reference ops use this form. Kernels compute probabilities on the fly, from spread scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True, eq=False)
class ReducedLaw:
    """Distributions [B, M, V] that are 0 except at some tokens.

    Attributes:
        mass: float [B, M, k], the probabilities of these tokens.
        ids: int64 [k], the tokens, ascending.
        vocab: V.
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
        """Select rows int64 [m], as `Tensor.index_select` along axis 1."""
        if dim != 1:
            raise ValueError(f"dim: expected 1, the axis of rows, got {dim}")
        return ReducedLaw(self.mass.index_select(1, index), self.ids, self.vocab)

    def place(self, token: Tensor) -> Tensor:
        """Return the column in `mass` of each token int64 [...], k for other tokens."""
        count = len(self.ids)
        at = torch.searchsorted(self.ids, token)
        return torch.where(self.ids[at.clamp(max=count - 1)] == token, at, count)

    def spread(self, mass: Tensor) -> Tensor:
        """Spread probabilities [..., k] of the drafter's tokens to [..., V]."""
        return mass.new_zeros(*mass.shape[:-1], self.vocab).index_copy_(-1, self.ids, mass)

    def with_rest(self) -> Tensor:
        """Return float [B, M, k + 1], the probabilities and a 0 for all other tokens together."""
        return pad(self.mass, (0, 1))

    def lumped(self, p: Tensor) -> Tensor:
        """Reduce a distribution [B, N, V] to the drafter's tokens and the sum of all others, float [B, N, k + 1]."""
        own = p.index_select(2, self.ids)
        rest = (p.sum(-1) - own.sum(-1)).clamp_min_(0)
        return torch.cat((own, rest[..., None]), -1)


def spread_scores(scores: Tensor, ids: Tensor, vocab: int) -> Tensor:
    """Spread scores [..., k] of the tokens `ids` int64 [k] to [..., V], with minus infinity elsewhere."""
    return scores.new_full((*scores.shape[:-1], vocab), -torch.inf).index_copy_(-1, ids, scores)
