"""Laws and residuals in the form that kernels read: scores with the statistics of their rows, never written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmspec.kernels.reduced_law import ReducedLaw

TINY = 1e-30  # a divisor that keeps float32 finite where the quotient is never used


@dataclass(frozen=True, slots=True, eq=False)
class LogLaw:
    """Laws of rows that are never written out: p(x) = exp(s - lse) for s = scores(x) / T from the floor up, else 0.

    scores: float [B, R, V].   stats: float32 or float64 [B, R, 3], per row lse, 1 / T and the floor (see `row_stats`).
    row: int64 [M], which rows of the scores these are; None for all of them in order.
    """

    scores: Tensor
    stats: Tensor
    row: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        rows = self.scores.shape[1] if self.row is None else len(self.row)
        return torch.Size((self.scores.shape[0], rows, self.scores.shape[2]))

    @property
    def dtype(self) -> torch.dtype:
        return self.stats.dtype

    @property
    def device(self) -> torch.device:
        return self.scores.device

    def index_select(self, dim: int, index: Tensor) -> LogLaw:
        """The rows int64 [m] of these, as `Tensor.index_select` along axis 1, without a copy."""
        if dim != 1:
            raise ValueError(f"dim: expected 1, the axis of rows, got {dim}")
        return LogLaw(self.scores, self.stats, index if self.row is None else self.row[index])

    def at(self, node: Tensor) -> LogLaw:
        """One row of each request as a law [B, 1, V], written nowhere but for the gathered scores. node: int64 [B]."""
        node = node if self.row is None else self.row[node]
        b = torch.arange(len(node), device=node.device)
        return LogLaw(self.scores[b, node][:, None], self.stats[b, node][:, None])


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """What follows node i of each row, unnormalised, given that it was the last accepted.

    form: "scaled" [alpha p - beta q]+, "kseq" [p - alpha min(p / beta, q)]+, "without" p but for the tokens in `remove`.
    p: [B, N, V]; q: [B, M, V] and q_row int64 [N], its row for each node; None for "without".
    alpha, beta: float [B, N].   token: int64 [B, N]; remove: bool [B, N], for "without" and "scaled": tokens of the accepted
    node's children that go; None where none goes.
    """

    form: Literal["scaled", "kseq", "without"]
    p: Tensor | LogLaw
    q: Tensor | LogLaw | ReducedLaw | None = None
    q_row: Tensor | None = None
    alpha: Tensor | None = None
    beta: Tensor | None = None
    token: Tensor | None = None
    remove: Tensor | None = None
