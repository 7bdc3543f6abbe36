"""Routers by a block's score: against a number, or against the video's own first block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from mmspec.core.arguments import number
from mmspec.video.decoding.evidence import BlockEvidence
from mmspec.video.routing.router import Router


class Threshold(Router):
    """A draft stands where its score is `least` or more: "Speculative Decoding for Autoregressive Video Generation" (SDVG),
    where the score is the least of its frames' and tau lies in -1.0..-0.7 of ImageReward. Relaxed; infinity is the target
    alone.

    Raises ValueError for NaN.
    """

    def __init__(self, least: float):
        self.least = number("threshold", least, infinite=True)
        self.exact = self.least == math.inf
        self.name = "target alone (threshold inf)" if self.exact else f"reward >= {self.least:g} (relaxed)"

    @classmethod
    def accepting(cls, share: float, scores: Sequence[float]) -> Self:
        """The threshold that lets such a share of `scores` stand, those of drafts of other videos.

        0 is the target alone, 1 lets everything stand. Raises ValueError for a share outside 0..1 and for no finite scores.
        """
        return cls(least_of(share, scores))

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return evidence.reward[:, 1] >= self.least


class Relative(Router):
    """A draft stands where its score is no more than `margin` below that of the target's block that began the prompt. Relaxed;
    minus infinity is the target alone.

    Rewards tell more of prompts than of pictures, so that one number for all videos redraws those that are hard to please
    from end to end; the forced first block knows what this one can reach. Its frames are fewer where a film's first latent
    stands for one: the least of few is higher, so take the mean there, or a wider margin.   Raises ValueError for NaN.
    """

    scores_own = "anchors"

    def __init__(self, margin: float):
        self.margin = number("margin", margin, infinite=True)
        self.exact = self.margin == -math.inf
        told = f"reward >= first block - {self.margin:g} (relaxed)"
        self.name = "target alone (margin -inf)" if self.exact else told

    @classmethod
    def accepting(cls, share: float, scores: Sequence[float], anchors: Sequence[float]) -> Self:
        """The margin that lets such a share of `scores` stand, each beside the score of its own video's first block."""
        return cls(-least_of(share, [one - other for one, other in zip(scores, anchors, strict=True)]))

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return evidence.reward[:, 1] >= evidence.anchor - self.margin


def least_of(share: float, scores: Sequence[float]) -> float:
    """The largest number that a `share` of the scores is not below; infinity for a share of none, minus that for all."""
    values = torch.as_tensor(scores, dtype=torch.float64)
    if not 0 <= share <= 1:
        raise ValueError(f"share: expected 0 to 1, got {share}; it is the part of the drafts that stand")
    if values.numel() == 0 or not values.isfinite().all():
        raise ValueError(f"scores: expected finite numbers to calibrate by, got {values.numel()} with NaN or Inf or none; "
                         "score drafts of some videos first")  # fmt: skip
    if share in (0, 1):
        return math.inf if share == 0 else -math.inf
    ranked = values.flatten().sort(descending=True).values
    return ranked[max(1, round(share * len(ranked))) - 1].item()
