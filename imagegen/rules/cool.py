"""Cool-SD: every ratio is raised by a factor that cools down along the block."""

from __future__ import annotations

import math

from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.rules import Weights
from mmspec.imagegen.rules.relaxed import Relaxed


class CoolSD(Relaxed):
    """Accepts a drafted value at depth i (from 0) with probability min(1, w_i p / q), w_i = delta exp(-decay i - mu).
    Relaxed: early values of a block more, later ones less.

    "Annealed Relaxation of Speculative Decoding for Faster Autoregressive Image Generation", whose code is not out. Needs
    no table of neighbours. What follows a rejection has the law [p - q f]+, the nearest to the target (see `Relaxed`).

    delta: the knob, 1.1 to 2 in the paper.   decay: 0.7 there.   mu: None makes the factors average delta over the
    block, our reading of a constant that the paper's summary leaves open; so a faster decay moves the relaxation to the
    front and does not remove it. A block is as deep as the draft's tree.
    Factors below 1 are taken as 1: with the residual [p - q f]+ such a step has the target's law either way, and accepting
    less than the exact rule only shortens the path. delta 1 with decay 0 and mu 0 (or None) is the exact rule, bit for bit.
    Raises ValueError for settings out of range.
    """

    name = "coolsd (relaxed)"

    def __init__(self, delta: float = 1.1, decay: float = 0.7, mu: float | None = None):
        if not delta > 0 or not decay >= 0:
            raise ValueError(f"expected delta above 0 and decay of at least 0, got {delta} and {decay}")
        self.delta, self.decay, self.mu = delta, decay, mu

    def scale(self, depth: int) -> float:
        """w_0 for a block of that many values."""
        if self.mu is not None:
            return self.delta * math.exp(-self.mu)
        return self.delta * depth / sum(math.exp(-self.decay * i) for i in range(depth))

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        step = (draft.tree.depth - 1).clamp_min(0).to(weights.threshold.dtype)
        factor = (step * -self.decay).exp() * self.scale(draft.tree.max_depth)
        return (weights.threshold * factor.clamp_min(1)).clamp_max(1)
