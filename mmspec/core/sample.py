"""Drawing a drafted value from the law that goes on record."""

from __future__ import annotations

from torch import Tensor

from mmspec.kernels.law import law_of
from mmspec.kernels.sample import sample_categorical

__all__ = ["draw", "law_of"]


def draw(scores: Tensor, uniform: Tensor) -> Tensor:
    """One index per row, int64 [...], from the very law that rules read from the record of `scores`.

    scores: float32 [..., V], log-weights; uniform: float64 [...] in [0, 1).
    """
    return sample_categorical(law_of(scores), uniform)
