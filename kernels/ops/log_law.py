from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmspec.kernels.reduced_law import ReducedLaw

TINY = 1e-30  # the least divisor, which keeps unused quotients finite in float32


@dataclass(frozen=True, slots=True, eq=False)
class LogLaw:
    """Distributions that are never written out: p(x) = exp(s - lse) for s = scores(x) / T from the floor up, else 0."""

    scores: Tensor  # float [B, R, V]
    stats: Tensor  # float32 or float64 [B, R, 3], per row lse, 1 / T and the floor (see `row_stats`)
    row: Tensor | None = None  # int64 [M], the selected rows of the scores; None for all in order

    @property
    def shape(self) -> torch.Size:
        shape = self.scores.shape
        return shape if self.row is None else torch.Size((shape[0], len(self.row), shape[2]))

    @property
    def dtype(self) -> torch.dtype:
        return self.stats.dtype

    @property
    def device(self) -> torch.device:
        return self.scores.device

    def index_select(self, dim: int, index: Tensor) -> LogLaw:
        """Select rows int64 [m] along axis 1, without a copy."""
        if dim != 1:
            raise ValueError(f"dim: expected 1, the axis of rows, got {dim}")
        return LogLaw(self.scores, self.stats, index if self.row is None else self.row[index])

    def at(self, node: Tensor) -> LogLaw:
        """Return the row `node` int64 [B] of each request as a law [B, 1, V]; only the scores are gathered."""
        node = node if self.row is None else self.row[node]
        b = torch.arange(len(node), device=node.device)
        return LogLaw(self.scores[b, node][:, None], self.stats[b, node][:, None])


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """The unnormalised distribution of the value after node i of each row, given that it is the last accepted node:
    "scaled" [alpha p - beta q]+, "kseq" [p - alpha min(p / beta, q)]+, "without" p except the tokens in `remove`."""

    form: Literal["scaled", "kseq", "without"]
    p: Tensor | LogLaw  # float [B, N, V]
    q: Tensor | LogLaw | ReducedLaw | None = None  # float [B, M, V]
    q_row: Tensor | None = None  # int64 [N], the row of q for each node, -1 where it is not read
    alpha: Tensor | None = None  # float [B, N]
    beta: Tensor | None = None  # float [B, N]
    token: Tensor | None = None  # int64 [B, N]
    remove: Tensor | None = None  # bool [B, N], the accepted node's children whose tokens are excluded


@dataclass(frozen=True, slots=True, eq=False)
class RejectionOrder:
    """The children of a tree in the order of sequential rejection, and the nodes that each launch of kernels serves.
    For a shared tree `steps` are int64 [5, n]: the nodes, how many of their children were tested, their children's
    number, the child tested last and the child to test, N for none. For trees per row they are the nodes int64 [n]. A
    node's last launch only sums up."""

    child: Tensor  # int64 [R, N, K], the child of every sibling rank, N for none
    first: Tensor  # int64 [R, N], the launch that tests a node's first child
    parent: Tensor  # int64 [M], the nodes that may have children
    steps: tuple[Tensor, ...]
