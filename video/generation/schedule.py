"""The noise levels of a shifted flow: a table of 1000, looked up by timestep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

TRAINING_STEPS = 1000


def shifted(sigma: Tensor, shift: float) -> Tensor:
    """sigma' = shift sigma / (1 + (shift - 1) sigma)."""
    return shift * sigma / (1 + (shift - 1) * sigma)


@lru_cache(maxsize=16)
def sigmas(shift: float) -> Tensor:
    """float32 [1000], the levels from 1 down to that of the last step, which is not 0; timesteps are 1000 times these."""
    return shifted(torch.linspace(1.0, 0.0, TRAINING_STEPS + 1)[:-1], shift)


def warped(steps: Sequence[int], shift: float) -> tuple[float, ...]:
    """Steps 0..1000 as the timesteps of the shifted flow, float32 numbers: 1000, 750, 500, 250 at shift 5 are 1000, 937.5,
    833.3, 625; and 0 stays 0."""
    table = torch.cat((sigmas(shift) * TRAINING_STEPS, torch.zeros(1)))
    return tuple(table[[TRAINING_STEPS - step for step in steps]].tolist())


def level(timestep: float, shift: float) -> Tensor:
    """float32 [1, 1, 1, 1, 1], sigma of the timestep of the table that is nearest; at timestep 0 it is the table's last."""
    table = sigmas(shift)
    nearest = (table.double() * TRAINING_STEPS - timestep).abs().argmin()
    return table[nearest].reshape(1, 1, 1, 1, 1)
