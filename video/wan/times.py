"""What a Wan model makes of the times of its frames."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoid(timestep: Tensor, dim: int) -> Tensor:
    """float64 [..., dim] of timesteps [...]: cosines, then sines.

    In float64, as the causal checkpoints' code has it: a timestep of 937.5 must stay apart from 937, and the angles of large
    timesteps lose digits in float32.
    """
    half = dim // 2
    frequency = torch.exp(-math.log(10000) / half * torch.arange(half, dtype=torch.float64, device=timestep.device))
    angle = timestep.double()[..., None] * frequency
    return torch.cat((angle.cos(), angle.sin()), -1)
