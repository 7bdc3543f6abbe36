"""Rows of tokens that end in -1."""

from __future__ import annotations

from torch import Tensor


def read_padded(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """What is accepted and what follows, int64 [R] each, of emitted tokens int [R, K + 1] padded with -1."""
    tokens = tokens.long().cpu()
    accepted = (tokens >= 0).sum(-1) - 1
    return accepted, tokens.gather(1, accepted.clamp_min(0)[:, None])[:, 0]
