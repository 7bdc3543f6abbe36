"""Integrals to rounding: Gauss-Legendre on panels that end where the integrand has a kink."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

REACH = 9.0  # standard deviations; what lies beyond has less mass than 1e-18
ORDER = 16


def panels(edges: Tensor, count: int = 8) -> tuple[Tensor, Tensor]:
    """Nodes and weights float64 [..., (E - 1) * count * ORDER] for edges float64 [..., E], in ascending order; between
    neighbouring edges lie `count` panels.
    """
    node, weight = (torch.from_numpy(x) for x in numpy.polynomial.legendre.leggauss(ORDER))
    share = torch.linspace(0, 1, count + 1, dtype=torch.float64)
    low, high = edges[..., :-1, None], edges[..., 1:, None]
    ends = low + (high - low) * share
    half, middle = ends.diff(dim=-1) / 2, (ends[..., :-1] + ends[..., 1:]) / 2
    x = middle[..., None] + half[..., None] * node
    return x.flatten(-3), (half[..., None] * weight).expand_as(x).flatten(-3)


def split(kink: Tensor, centre: Tensor | float, scale: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights over centre -+ REACH scale, with an edge at the kink where it lies inside."""
    low = torch.as_tensor(centre, dtype=torch.float64) - REACH * scale
    low, kink = torch.broadcast_tensors(low, torch.as_tensor(kink).double())
    high = low + 2 * REACH * scale
    return panels(torch.stack((low, kink.clamp(low, high), high), -1))


def phi(x: Tensor, mean: Tensor | float, scale: float) -> Tensor:
    """The density of N(mean, scale^2), float64."""
    return torch.exp(-(((x - mean) / scale) ** 2) / 2) / (scale * (2 * torch.pi) ** 0.5)
