"""A picture as what a few learned queries find in it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.vlm.drafters.compressors import Compressor
from mmspec.vlm.drafters.vision_adaptor import absorbed


class Resampler(Compressor):
    """One cross-attention layer from learned queries to a picture's rows.

    Keys are of normed rows, values of the rows themselves; value and output projections start as identities, so what
    comes out starts as averages of the rows and is of their scale.
    """

    def __init__(self, width: int, heads: int, dim: int, queries: int, eps: float):
        super().__init__()
        self.heads, self.queries = heads, queries
        self.query = nn.Parameter(torch.randn(queries, heads * dim))
        self.norm = nn.RMSNorm(width, eps=eps)
        self.key = nn.Linear(width, heads * dim, bias=False)
        self.value = nn.Linear(width, heads * dim, bias=False)
        self.out = nn.Linear(heads * dim, width, bias=False)
        nn.init.eye_(self.value.weight)
        nn.init.eye_(self.out.weight)

    def count(self, length: Tensor) -> Tensor:
        """As many as there are queries, int64 [K]."""
        return torch.full_like(length, self.queries)

    def forward(self, rows: Tensor, length: Tensor) -> Tensor:
        """[K, queries, H] of the pictures' rows [K, N, H], of which the first `length` int64 [K] are theirs."""
        there = torch.arange(rows.shape[1], device=rows.device) < length[:, None]
        query = self.query.unflatten(-1, (self.heads, -1))
        return self.out(absorbed(query, self.norm(rows), rows, self.key.weight, self.value, there))
