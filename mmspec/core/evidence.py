"""What one target pass says about a draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Evidence:
    """The target's view of every node of a draft; a domain fills what its rules read and leaves the rest None.

    scores: float32 [B, N, V], the target's log-weights for the value that follows node i, after all logits
        processors; softmax of it is p. Never NaN: rows of `bad` nodes are neutralised by the target.
    greedy: the request takes the argmax of `scores` (temperature 0).
    mean, scale: float32 [B, N, d] and [B, N, 1], the target's Gaussian for the value that follows node i.
    reward: float32 [B, N], the judged quality of node i itself.
    hidden: float [B, N, H], states drafters ask for.
    bad: bool [B, N], nodes whose raw outputs were NaN or Inf; None when all are finite.
    """

    scores: Tensor | None = None
    greedy: bool = False
    mean: Tensor | None = None
    scale: Tensor | None = None
    reward: Tensor | None = None
    hidden: Tensor | None = None
    bad: Tensor | None = None


def neutralised(scores: Tensor, asks: bool = True) -> tuple[Tensor, Tensor | None]:
    """Scores [..., V] with zeros where nothing could be drawn from them (NaN, +Inf, or -Inf throughout), and bool [...],
    where that was; None where it was nowhere, as far as that is known without a sync.

    asks: whether the host may look, which is free on the CPU; inside a captured round it may not.
    """
    bad = ~scores.amax(-1).isfinite()
    if asks and bad.is_cpu and not bad.any():
        return scores, None
    return torch.where(bad[..., None], 0.0, scores), bad
