"""Distributions over few tokens: the tokens and their probabilities, never spread over the vocabulary.

The tokens are those of a drafter with a reduced vocabulary, or the few that a table stores for each node. Outside them
q is 0, so p counts there only in total. Every sum over the vocabulary in a rule is thus a sum over these tokens and a
single entry for all others. With 4,096 of 49,152 tokens a sampled tree is verified with a twelfth of the work and
memory. Only the residual after the accepted node is as wide as the vocabulary, once per row.

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
        ids: int64 [k], the tokens, ascending; or [B, M, k], the tokens of each distribution, -1 for no token.
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

    @property
    def shared(self) -> bool:
        """Whether all distributions are over the same tokens."""
        return self.ids.dim() == 1

    def index_select(self, dim: int, index: Tensor) -> ReducedLaw:
        """Select rows int64 [m], as `Tensor.index_select` along axis 1."""
        if dim != 1:
            raise ValueError(f"dim: expected 1, the axis of rows, got {dim}")
        ids = self.ids if self.shared else self.ids.index_select(1, index)
        return ReducedLaw(self.mass.index_select(1, index), ids, self.vocab)

    def at(self, node: Tensor) -> ReducedLaw:
        """Return the row `node` int64 [B] of each request as a law [B, 1, V]."""
        row = torch.arange(len(node), device=node.device)
        ids = self.ids if self.shared else self.ids[row, node][:, None]
        return ReducedLaw(self.mass[row, node][:, None], ids, self.vocab)

    def place(self, token: Tensor, row: Tensor) -> Tensor:
        """Return the column in `mass` of each token, k for other tokens.

        Args:
            token: int64 [B, N].
            row: int64 [N] or [R, N], the distribution in which each token is looked up.
        """
        count = self.ids.shape[-1]
        if self.shared:
            at = torch.searchsorted(self.ids, token)
            return torch.where(self.ids[at.clamp(max=count - 1)] == token, at, count)
        equal = self._ids_of(row) == token[..., None]
        return torch.where(equal.any(-1), equal.int().argmax(-1), count)

    def dense(self) -> Tensor:
        """Return float [B, M, V], the probabilities of all tokens."""
        zeros = self.mass.new_zeros(self.shape)
        if self.shared:
            return zeros.index_copy_(-1, self.ids, self.mass)
        return zeros.scatter_add_(-1, self.ids.clamp_min(0), self.mass.masked_fill(self.ids < 0, 0))

    def with_rest(self) -> Tensor:
        """Return float [B, M, k + 1], the probabilities and a 0 for all other tokens together."""
        return pad(self.mass, (0, 1))

    def lumped(self, p: Tensor, row: Tensor) -> Tensor:
        """Reduce a distribution to the tokens of this law and the sum of all others, float [B, N, k + 1].

        Args:
            p: float [B, N, V].
            row: int64 [N], the row of this law with the tokens of each node.
        """
        if self.shared:
            own = p.index_select(2, self.ids)
        else:
            ids = self._ids_of(row)
            own = p.gather(2, ids.clamp_min(0)).masked_fill_(ids < 0, 0)
        rest = (p.sum(-1) - own.sum(-1)).clamp_min_(0)
        return torch.cat((own, rest[..., None]), -1)

    def _ids_of(self, row: Tensor) -> Tensor:
        """Return the tokens of rows int64 [N] or [R, N], int64 [B, N, k]."""
        if row.dim() == 1 or len(row) == 1:
            return self.ids.index_select(1, row.flatten())
        return self.ids.gather(1, row[..., None].expand(-1, -1, self.ids.shape[-1]))


def spread_scores(scores: Tensor, ids: Tensor, vocab: int) -> Tensor:
    """Spread scores [B, M, k] of the tokens `ids`, int64 [k] or [B, M, k] as in `ReducedLaw`, over the vocabulary.

    Returns:
        float [B, M, V], with minus infinity elsewhere.
    """
    spread = scores.new_full((*scores.shape[:-1], vocab), -torch.inf)
    if ids.dim() == 1:
        return spread.index_copy_(-1, ids, scores)
    return spread.scatter_reduce_(-1, ids.clamp_min(0), scores.masked_fill(ids < 0, -torch.inf), "amax")
