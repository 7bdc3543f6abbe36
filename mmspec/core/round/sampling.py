from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.law import dense, law_of, mass_at, ratio_of, residual_law
from mmspec.kernels.log_law import TINY, LogLaw, Residual
from mmspec.kernels.neighbour_pooling import borrowed_mass, borrowing_thresholds, pooled_mass, ranked_window
from mmspec.kernels.sampling import sample_categorical, truncated_scores

__all__ = ["TINY", "LogLaw", "Residual", "borrowed_mass", "borrowing_thresholds", "dense", "draw", "draw_several", "law_of",
           "mass_at", "pooled_mass", "ranked_window", "ratio_of", "residual_law", "sample_categorical",
           "truncated_scores"]  # fmt: skip


def draw(scores: Tensor, uniform: Tensor) -> Tensor:
    """Draw an index per row, int64 [...], from log-weights [..., V] by uniforms float64 [...] in [0, 1), from the
    distribution that rules read."""
    return sample_categorical(law_of(scores), uniform)


def draw_several(scores: Tensor, uniform: Tensor) -> Tensor:
    """Draw k independent indices per row, int64 [..., k], by uniforms float64 [..., k] in [0, 1)."""
    total = law_of(scores).double().cumsum(-1)
    point = uniform.double() * total[..., -1:]
    # as in `sample_categorical`, never return an index without mass
    last = (total < total[..., -1:]).sum(-1, keepdim=True)
    return torch.searchsorted(total, point, right=True).minimum(last)
