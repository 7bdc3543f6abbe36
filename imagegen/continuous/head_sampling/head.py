"""Heads that draw a vector in several denoising steps: their Gaussians, plain sampling, and drafts of the next steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gaussian:
    mean: Tensor  # float32 [R, d]
    log_scale: Tensor  # float32 [R, d], the log of the standard deviation before temperature


class StepTables:
    """Numbers of every denoising step, from tables float64 [T]."""

    def __init__(self, device: torch.device | str, *tables: Tensor):
        self._tables = torch.stack(tables).float().to(device)
        self._numbers = [tuple(row) for row in torch.stack(tables, 1).tolist()]

    def at(self, step: Tensor | int) -> Sequence[Tensor | float]:
        """Return a number per table, or float32 [R, 1] per table where steps int64 [R] differ."""
        return self._numbers[step] if isinstance(step, int) else self._tables[:, step, None].unbind(0)


class Head(Protocol):
    """The interface of heads: from a condition to the Gaussians of T denoising steps."""

    steps: int  # T; step T - 1 is the first and step 0 the last
    dim: int  # d, the width of a token
    network_variance: bool  # whether log_scale depends on the network's output
    last_noise: bool  # whether step 0 adds noise; otherwise the token is its mean

    def thinned(self, steps: int) -> Head:
        """Return the head with fewer steps, evenly spaced among its own; its own number returns the head itself."""

    def about(self, z: Tensor) -> Any:
        """Return the shared part of all steps, of z [R, width], or [2, R, width] (conditional, null) if guided."""

    def gaussian(
        self, x: Tensor, step: Tensor | int, about: Any, guidance: Tensor | None = None, row: Tensor | None = None
    ) -> Gaussian:
        """Return the law after `step` (int, or int64 [n]) of states x float [n, d]. `guidance` float [n] None is the
        conditional branch alone; `row` int64 [n] is the token of each state, None for a state per token."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The denoising trajectory of R tokens."""

    value: Tensor  # float32 [R, d], x_0
    last: Gaussian  # of x_0 given x_1
    state: Tensor  # float32 [R, d], x_1
    log_det: Tensor  # float32 [R], log standard deviations with temperature, summed over dims and the steps above 0


def sample(
    head: Head, z: Tensor, initial: Tensor, noise: Tensor, *, guidance: Tensor | None = None, temperature: float = 1.0
) -> Trajectory:
    """Draw a token per row, x' = mean + temperature * scale * noise at every step, from `initial` x_T float [R, d].
    Entry 0 of `noise` float [R, T, d] is read only with `last_noise`; log_det is -inf at temperature 0."""
    shape = (len(initial), head.steps, head.dim)
    if noise.shape != shape:
        raise ValueError(
            f"noise: expected {shape} for {head.steps} steps, got {tuple(noise.shape)}; draw an entry per step"
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
    """The distributions of the next K steps: each has the mean pull x + shift, with x the state before it."""

    pull: Tensor  # float [R, K, 1]
    shift: Tensor  # float [R, K, d]
    log_scale: Tensor  # float [R, K, d], before temperature


class StepDrafter(Protocol):
    """The interface of step drafters, which reuse a prediction made at a state for later steps."""

    def read(self, law: Gaussian, x: Tensor, step: Tensor) -> object:
        """Return the stored prediction from the head's Gaussian at states x [R, d], steps int64 [R]."""

    def ahead(self, held: object, step: Tensor) -> DraftedSteps:
        """Return the distributions that the stored prediction gives at steps int64 [R, K], without the head."""

    def rows(self, held: object, chosen: Tensor) -> object:
        """Return some rows of the stored prediction."""


@dataclass(frozen=True, slots=True)
class CleanPrediction:
    clean: Tensor  # float [R, d], the predicted x_0
    share: Tensor  # float [R, d], the position of the log scale between its bounds


@dataclass(frozen=True, slots=True, eq=False)
class CleanTokenDrafter:
    """Stores the predicted clean token, for heads with the mean pull[t] x_t + push[t] x_0 (float [T]), as DDPM's. Where
    the log scale has two bounds, the position between them is stored too. In the time of stochastic localization the
    clean token is the drift, whose increments are exchangeable ("Diffusion Models are Secretly Exchangeable:
    Parallelizing DDPMs via Autospeculation")."""

    pull: Tensor
    push: Tensor
    low: Tensor  # the lower bound of the log scale before temperature
    high: Tensor  # the upper bound, equal to `low` for heads whose scale is a table

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
