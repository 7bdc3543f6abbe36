"""Heads that draw a vector in several denoising steps: each step's Gaussian, plain sampling, and drafts of the next steps."""

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


@dataclass(frozen=True, slots=True)
class DraftedSteps:
    """The laws of the next K steps: each has the mean pull x + shift, x the state before it.

    pull: float [R, K, 1].   shift, log_scale: float [R, K, d]; log_scale before temperature.
    """

    pull: Tensor
    shift: Tensor
    log_scale: Tensor


class StepDrafter(Protocol):
    """Carries a prediction made at one state over to later ones."""

    def read(self, law: Gaussian, x: Tensor, step: Tensor) -> object:
        """What is held of the law that the head gave at state x [R, d], step int64 [R]."""

    def ahead(self, held: object, step: Tensor) -> DraftedSteps:
        """The laws that the held prediction gives at steps int64 [R, K], without the head."""

    def rows(self, held: object, chosen: Tensor) -> object:
        """Some rows of what is held."""


@dataclass(frozen=True, slots=True)
class CleanPrediction:
    """clean: float [R, d], the predicted x_0.   share: float [R, d], where between its bounds the log scale stood."""

    clean: Tensor
    share: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class CleanTokenDrafter:
    """Holds the predicted clean token, for heads whose steps have the mean pull[t] x_t + push[t] x_0.

    That is DDPM's posterior mean. In the time of stochastic localization it holds the drift, whose increments are
    exchangeable ("Diffusion Models are Secretly Exchangeable: Parallelizing DDPMs via Autospeculation").
    pull, push: float [T], by respaced step.   low, high: float [T], bounds of the log scale before temperature; equal for
    heads whose scale is a table, else the share of the way between them is held too.
    """

    pull: Tensor
    push: Tensor
    low: Tensor
    high: Tensor

    def read(self, law: Gaussian, x: Tensor, step: Tensor) -> CleanPrediction:
        clean = (law.mean - self._at(self.pull, step, x) * x) / self._at(self.push, step, x)
        low, high = self._at(self.low, step, x), self._at(self.high, step, x)
        room = high - low
        return CleanPrediction(clean, torch.where(room > 0, (law.log_scale - low) / room, 0.0))

    def ahead(self, held: CleanPrediction, step: Tensor) -> DraftedSteps:
        clean, share = held.clean[:, None], held.share[:, None]
        low, high = self._at(self.low, step, clean), self._at(self.high, step, clean)
        shift = self._at(self.push, step, clean) * clean
        return DraftedSteps(self._at(self.pull, step, clean), shift, low + share * (high - low))

    def rows(self, held: CleanPrediction, chosen: Tensor) -> CleanPrediction:
        return CleanPrediction(held.clean[chosen], held.share[chosen])

    @staticmethod
    def _at(table: Tensor, step: Tensor, x: Tensor) -> Tensor:
        return table.to(x)[step][..., None]
