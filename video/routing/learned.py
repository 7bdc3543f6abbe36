"""A router that predicts what the target would gain, after "Arbitrage: Efficient Reasoning via Advantage-Aware
Speculation"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mmspec.core.arguments import number
from mmspec.core.drafting.pretrained import Pretrained
from mmspec.video.decoding.evidence import BlockEvidence
from mmspec.video.routing.features import FEATURES
from mmspec.video.routing.router import Router


@dataclass(frozen=True, slots=True)
class AdvantageConfig:
    """features: what the model reads, in order.   hidden: width.   Raises ValueError for other features than are made."""

    features: tuple[str, ...] = FEATURES
    hidden: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        if self.features != FEATURES:
            raise ValueError(
                f"features: expected {', '.join(FEATURES)}, got {', '.join(self.features)}; train the model anew"
            )
        if self.hidden < 1:
            raise ValueError(f"hidden: expected at least 1, got {self.hidden}; use a positive width")


class Advantage(Pretrained):
    """Features of a draft -> the score the target's block would have above the draft's. float [N, K] -> float [N]."""

    kind = "block-advantage"
    config_class = AdvantageConfig
    kinds: ClassVar[dict[str, type[Pretrained]]] = {}

    def __init__(self, config: AdvantageConfig):
        super().__init__(config)
        count = len(config.features)
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("std", torch.ones(count))
        self.register_buffer("scale", torch.ones(2))  # spread and mean of the advantage
        self.layers = nn.Sequential(nn.Linear(count, config.hidden), nn.SiLU(), nn.Linear(config.hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """features: float [N, K], in the order of the config.   Returns float [N]."""
        return self.layers((features - self.mean) / self.std)[..., 0] * self.scale[0] + self.scale[1]


class Learned(Router):
    """A draft stands where the predicted advantage of the target is `gain` or less. Relaxed; a gain of minus infinity is the
    target alone, infinity lets everything stand.   Raises ValueError for NaN.
    """

    scores_own, looks = "anchors", True

    def __init__(self, model: Advantage, gain: float = 0.0):
        self.model, self.gain = model, number("gain", gain, infinite=True)
        self.exact = self.gain == -math.inf
        self.name = "target alone (gain -inf)" if self.exact else f"predicted gain <= {self.gain:g} (relaxed)"

    @torch.no_grad()
    def accept(self, evidence: BlockEvidence) -> Tensor:
        rows = evidence.features
        return self.model(rows.to(self.model.mean.device)).to(rows.device) <= self.gain
