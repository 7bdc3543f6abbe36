"""Coupled draws: a new value that has the new law and is as often as possible the value drawn before."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mmspec.core.sample import TINY

Coupling = Literal["maximal", "gumbel"]


def maximal_law(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    """The law of the new value given the old one, float [..., V]: min(1, p/q) at `token`, the rest spread as [p - q]+.

    p, q: float [..., V], the new law and the one `token` int64 [...] was drawn from. Averaged over token ~ q the new value
    has the law p, so p is what must be kept for it, whether it changed or not. The old value survives with probability
    1 - TV(p, q), the most any coupling reaches.
    """
    stay = (p.gather(-1, token[..., None]) / q.gather(-1, token[..., None]).clamp_min(TINY)).clamp_max_(1)
    rest = (p - q).clamp_(min=0)
    mass = rest.sum(-1, keepdim=True)
    rest = torch.where(mass > 0, rest, p)  # equal laws up to rounding
    rest = rest * ((1 - stay) / torch.where(mass > 0, mass, 1.0))
    return rest.scatter_add_(-1, token[..., None], stay)


def gumbel_pick(scores: Tensor, noise: Tensor) -> Tensor:
    """argmax(scores + noise), int64 [...]: a draw from softmax(scores) when `noise` float [..., V] is standard Gumbel.

    The same noise under two laws gives the same value with probability at least (1 - TV) / (1 + TV).
    """
    return (scores + noise).argmax(-1)
