"""Learned queries that pool a picture's states into a few rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LatentPool(nn.Module):
    """C rows softmax(A h^T) h of a picture's states h: no scaling, no projections, one head.

    latents: A, float [C, H], scaled so that scores of states of unit variance have unit variance.
    """

    def __init__(self, count: int, width: int):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(count, width) * width**-0.5)

    def forward(self, states: Tensor, there: Tensor) -> Tensor:
        """Rows [K, C, H] of K pictures.   states: float [K, N, H].   there: bool [K, N], places a picture fills."""
        scores = (self.latents @ states.transpose(1, 2)).float().masked_fill(~there[:, None], -torch.inf)
        return scores.softmax(-1).to(states.dtype) @ states
