"""Draw from an unnormalised categorical law with explicit uniforms."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_categorical(weight: Tensor, uniform: Tensor) -> Tensor:
    """One index per row by inversion, int64 [...]. weight: float [..., V] >= 0, at least one positive; uniform in [0, 1).

    The sums run in float64, and an index of weight 0 is never returned, at uniform 0 included.
    """
    total = weight.cumsum(-1, dtype=torch.float64)
    whole = total[..., -1:].contiguous()
    at = torch.searchsorted(total, uniform.double()[..., None] * whole, right=True)
    # the last index that carries mass catches a point that rounding pushed onto the total
    last = torch.searchsorted(total, whole).clamp_max_(weight.shape[-1] - 1)  # in range whatever NaN says
    return at.minimum(last).squeeze(-1)
