"""Heads that draw a vector in several denoising steps: what each step's Gaussian is, and the walk through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gaussian:
    """One denoising step's law. mean: float32 [R, d].   log_scale: float32 [R, d], log of the standard deviation before
    temperature."""

    mean: Tensor
    log_scale: Tensor


class Head(Protocol):
    """Conditioning vector in, Gaussians of T denoising steps out.

    steps: T of a sample; step T - 1 comes first and step 0 last.   dim: d of a token.
    network_variance: whether log_scale depends on the network's output.
    last_noise: whether step 0 adds noise; where it does not, the token is the mean of that step.
    """

    steps: int
    dim: int
    network_variance: bool
    last_noise: bool

    def gaussian(self, x: Tensor, step: Tensor | int, z: Tensor, guidance: Tensor | None = None) -> Gaussian:
        """The law of the state after `step`, given the state before it.

        x: float [R, d].   step: an int, or int64 [R] where rows stand at different steps.
        z: [R, width], or [2, R, width] (conditional, null) where guidance float [R], the scale of each row, is given.
        """


@dataclass(frozen=True, slots=True)
class Trajectory:
    """value: float32 [R, d], x_0.   last: the law of x_0 given x_1.   state: float32 [R, d], x_1.
    log_det: float32 [R], log standard deviations with temperature, summed over dims and the steps above 0.
    """

    value: Tensor
    last: Gaussian
    state: Tensor
    log_det: Tensor


def sample(
    head: Head, z: Tensor, initial: Tensor, noise: Tensor, *, guidance: Tensor | None = None, temperature: float = 1.0
) -> Trajectory:
    """Draws one token a row by ancestral sampling: x' = mean + temperature * scale * noise at every step.

    z, guidance: as in `Head.gaussian`.   initial: float [R, d], x_T.   noise: float [R, T, d], entry t for step t; that of
    step 0 is not read by heads without `last_noise`.   temperature: 0 or more; log_det is -inf at 0.
    Raises ValueError for noise of another shape.
    """
    shape = (len(initial), head.steps, head.dim)
    if noise.shape != shape:
        raise ValueError(
            f"noise: expected {shape} for {head.steps} steps, got {tuple(noise.shape)}; draw one entry a step"
        )
    x, log_det = initial.float(), initial.new_zeros(len(initial), dtype=torch.float32)
    for step in range(head.steps - 1, 0, -1):
        law = head.gaussian(x, step, z, guidance)
        x = law.mean + temperature * law.log_scale.exp() * noise[:, step]
        log_det = log_det + law.log_scale.sum(-1)
    # one sum for all steps, and -inf for temperature 0
    log_det = log_det + (head.steps - 1) * head.dim * torch.tensor(temperature, dtype=torch.float32).log()
    last = head.gaussian(x, 0, z, guidance)
    value = last.mean + temperature * last.log_scale.exp() * noise[:, 0] if head.last_noise else last.mean
    return Trajectory(value, last, x, log_det)
