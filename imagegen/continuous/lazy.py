"""LazyMAR's condition cache: most passes run the conditional branch alone and reuse how far the other one was from it."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.imagegen.continuous.model import MaskedModel


class LazyNull:
    """A `MaskedModel` for one request whose unconditional branch is run in the first `full` passes and in every `every`-th
    pass after them, and taken as the conditional one plus their last difference in between. Relaxed.

    "LazyMAR: Accelerating Masked Autoregressive Models via Feature Caching"; its cache of the decoder's tokens is not
    built here. every: 1 runs both always, which changes nothing.   passes, skipped: in all, and without the other branch.
    Raises ValueError for settings out of range.
    """

    def __init__(self, model: MaskedModel, full: int = 5, every: int = 9):
        if full < 1 or every < 1:
            raise ValueError(f"full, every: expected at least 1 pass, got {full} and {every}; use 1 or more")
        self.model, self.full, self.every = model, full, every
        self.passes = self.skipped = 0
        self._gap: Tensor | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def condition(self, tokens: Tensor, mask: Tensor, labels: Tensor, paired: bool) -> Tensor:
        """As `MaskedModel.condition`."""
        number, self.passes = self.passes, self.passes + 1
        if not paired:
            return self.model.condition(tokens, mask, labels, False)
        if number < self.full or (number - self.full + 1) % self.every == 0:
            z = self.model.condition(tokens, mask, labels, True)
            self._gap = z[1] - z[0]
            return z
        self.skipped += 1
        z = self.model.condition(tokens, mask, labels, False)[0]
        return torch.stack((z, z + self._gap))
