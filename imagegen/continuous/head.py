"""Heads that draw a vector in several denoising steps: what each step's Gaussian is, and the walk through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gaussian:
    """One denoising step's law. mean: float32 [R, d].   log_scale: float32 [R, d], log of the standard deviation before
    temperature."""

    mean: Tensor
    log_scale: Tensor


class StepTables:
    """Numbers of every denoising step. tables: float64 [T] each."""

    def __init__(self, device: torch.device | str, *tables: Tensor):
        self._tables = torch.stack(tables).float().to(device)
        self._numbers = [tuple(row) for row in torch.stack(tables, 1).tolist()]

    def at(self, step: Tensor | int) -> Sequence[Tensor | float]:
        """A number a table, or float32 [R, 1] where steps int64 [R] differ."""
        return self._numbers[step] if isinstance(step, int) else self._tables[:, step, None].unbind(0)


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

    def thinned(self, steps: int) -> Head:
        """The head with fewer steps, evenly spaced among its own; its own many give itself.   Raises ValueError for fewer
        than 2 and for more."""

    def about(self, z: Tensor) -> Any:
        """What all steps to R tokens have in common, computed once. z: [R, width], or [2, R, width] (conditional, null) where
        there is guidance."""

    def gaussian(self, x: Tensor, step: Tensor | int, about: Any, guidance: Tensor | None = None,
                 row: Tensor | None = None) -> Gaussian:  # fmt: skip
        """The law of the state after `step`, given the state before it.

        x: float [n, d].   step: an int, or int64 [n] where states stand at different steps.   about: as `about` gives it.
        guidance: float [n], the scale of each state, None for the conditional branch alone.
        row: int64 [n], which of the R tokens each state is of; None for one state a token.
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

    z: as `Head.about` takes it.   guidance: as in `Head.gaussian`.   initial: float [R, d], x_T.   noise: float [R, T, d],
    entry t for step t; that of step 0 is not read by heads without `last_noise`.   temperature: 0 or more; log_det is -inf
    at 0.
    Raises ValueError for noise of another shape.
    """
    shape = (len(initial), head.steps, head.dim)
    if noise.shape != shape:
        raise ValueError(
            f"noise: expected {shape} for {head.steps} steps, got {tuple(noise.shape)}; draw one entry a step"
        )
    about, noise, x, log_det = head.about(z), noise.unbind(1), initial.float(), 0.0
    for step in range(head.steps - 1, 0, -1):
        law = head.gaussian(x, step, about, guidance)
        x = torch.addcmul(law.mean, law.log_scale.exp(), noise[step], value=temperature)
        log_det = law.log_scale + log_det
    # one sum for all steps, and -inf for temperature 0
    log_det = log_det.sum(-1) + (head.steps - 1) * head.dim * torch.tensor(temperature, dtype=torch.float32).log()
    last = head.gaussian(x, 0, about, guidance)
    value = last.mean
    if head.last_noise:
        value = torch.addcmul(last.mean, last.log_scale.exp(), noise[0], value=temperature)
    return Trajectory(value, last, x, log_det)
