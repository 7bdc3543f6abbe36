"""Drawing a drafted value from the law that goes on record."""

from __future__ import annotations

from torch import Tensor

from mmspec.kernels.sample import sample_categorical


def draw(scores: Tensor, uniform: Tensor) -> Tensor:
    """One index per row, int64 [...], from softmax(scores). scores: float32 [..., V]; uniform: float64 [...] in [0, 1)."""
    return sample_categorical(scores.softmax(-1), uniform)
