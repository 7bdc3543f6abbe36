"""Distributions over few tokens: the tokens and their probabilities, never spread over the vocabulary.

The tokens are those of a drafter with a reduced vocabulary, or the few that a table stores for each node. Outside them
q is 0, so p counts there only in total, and a sum over the vocabulary is a sum over these tokens and an entry for all
others. Only the residual after the accepted node is as wide as the vocabulary, once per row. Only the references use
this form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True, eq=False)
class ReducedLaw:
    """Distributions [B, M, V] that are 0 except at some tokens."""

    mass: Tensor  # float [B, M, k], the probabilities of these tokens
    ids: Tensor  # int64 [k], ascending, or [B, M, k] of each distribution, -1 for no token
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
        return self.ids.dim() == 1

    def index_select(self, dim: int, index: Tensor) -> ReducedLaw:
        """Select rows int64 [m] along axis 1."""
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
        """Return the column in `mass` of each token int64 [B, N] in its row int64 [N] or [R, N], k for other tokens."""
        count = self.ids.shape[-1]
        if self.shared:
            at = torch.searchsorted(self.ids, token)
            return torch.where(self.ids[at.clamp(max=count - 1)] == token, at, count)
        equal = self._ids_of(row) == token[..., None]
        return torch.where(equal.any(-1), equal.int().argmax(-1), count)

    def dense(self) -> Tensor:
        zeros = self.mass.new_zeros(self.shape)
        if self.shared:
            return zeros.index_copy_(-1, self.ids, self.mass)
        return zeros.scatter_add_(-1, self.ids.clamp_min(0), self.mass.masked_fill(self.ids < 0, 0))

    def with_rest(self) -> Tensor:
        """Return float [B, M, k + 1], the probabilities and a 0 for all other tokens together."""
        return pad(self.mass, (0, 1))

    def lumped(self, p: Tensor, row: Tensor) -> Tensor:
        """Reduce p [B, N, V] to the tokens of the rows int64 [N] of this law and the sum of all others, float [B, N, k
        + 1]."""
        if self.shared:
            own = p.index_select(2, self.ids)
        else:
            ids = self._ids_of(row)
            own = p.gather(2, ids.clamp_min(0)).masked_fill_(ids < 0, 0)
        rest = (p.sum(-1) - own.sum(-1)).clamp_min_(0)
        return torch.cat((own, rest[..., None]), -1)

    def _ids_of(self, row: Tensor) -> Tensor:
        """Return the tokens int64 [B, N, k] of rows int64 [N] or [R, N]."""
        if row.dim() == 1 or len(row) == 1:
            return self.ids.index_select(1, row.flatten())
        return self.ids.gather(1, row[..., None].expand(-1, -1, self.ids.shape[-1]))


def spread_scores(scores: Tensor, ids: Tensor, vocab: int) -> Tensor:
    """Spread scores [B, M, k] of the tokens `ids`, int64 [k] or [B, M, k] as in `ReducedLaw`, over the vocabulary: [B,
    M, V] with -Inf elsewhere."""
    spread = scores.new_full((*scores.shape[:-1], vocab), -torch.inf)
    if ids.dim() == 1:
        return spread.index_copy_(-1, ids, scores)
    return spread.scatter_reduce_(-1, ids.clamp_min(0), scores.masked_fill(ids < 0, -torch.inf), "amax")
