"""Random keys whose rounds the device counts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.keys import Keys, Purpose
from mmspec.kernels.counter import uniforms


@dataclass(slots=True)
class CountedKeys(Keys):
    """`Keys` with `round` an int64 tensor of no axes: the same numbers, of a round that the host need not know."""

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        """As `Keys.uniform`; no rounds are drawn ahead, since a replay would repeat them."""
        count = 1
        for size in shape:
            count *= size
        return uniforms(self.seeds, self.stream(purpose, step), count).reshape(-1, *shape)
