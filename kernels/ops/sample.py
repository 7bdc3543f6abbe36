"""Draw from an unnormalised categorical law with explicit uniforms."""

from __future__ import annotations

from torch import Tensor


def sample_categorical(weight: Tensor, uniform: Tensor) -> Tensor:
    """One index per row by inversion, int64 [...]. weight: float [..., V] >= 0, at least one positive; uniform in [0, 1).

    The sums run in float64, and an index of weight 0 is never returned, at uniform 0 included.
    """
    total = weight.double().cumsum(-1)
    point = uniform.double()[..., None] * total[..., -1:]
    # the last index that carries mass catches a point that rounding pushed onto the total
    last = (total < total[..., -1:]).sum(-1)
    return (total <= point).sum(-1).minimum(last)
