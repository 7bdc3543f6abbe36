"""What of a head's last prediction is held while the next steps are drafted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.imagegen.continuous.head import Gaussian


@dataclass(frozen=True, slots=True)
class Ahead:
    """The laws of the next K steps: each has the mean pull x + shift, x the state before it.

    pull: float [R, K, 1].   shift, log_scale: float [R, K, d]; log_scale before temperature.
    """

    pull: Tensor
    shift: Tensor
    log_scale: Tensor


class Hold(Protocol):
    """Carries a prediction made at one state over to later ones."""

    def read(self, law: Gaussian, x: Tensor, step: Tensor) -> object:
        """What is held of the law that the head gave at state x [R, d], step int64 [R]."""

    def ahead(self, held: object, step: Tensor) -> Ahead:
        """The laws that the held prediction gives at steps int64 [R, K], without the head."""

    def rows(self, held: object, chosen: Tensor) -> object:
        """Some rows of what is held."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """clean: float [R, d], the predicted x_0.   share: float [R, d], where between its bounds the log scale stood."""

    clean: Tensor
    share: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class HoldClean:
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

    def read(self, law: Gaussian, x: Tensor, step: Tensor) -> Prediction:
        clean = (law.mean - self._at(self.pull, step, x) * x) / self._at(self.push, step, x)
        low, high = self._at(self.low, step, x), self._at(self.high, step, x)
        room = high - low
        return Prediction(clean, torch.where(room > 0, (law.log_scale - low) / room, 0.0))

    def ahead(self, held: Prediction, step: Tensor) -> Ahead:
        clean, share = held.clean[:, None], held.share[:, None]
        low, high = self._at(self.low, step, clean), self._at(self.high, step, clean)
        shift = self._at(self.push, step, clean) * clean
        return Ahead(self._at(self.pull, step, clean), shift, low + share * (high - low))

    def rows(self, held: Prediction, chosen: Tensor) -> Prediction:
        return Prediction(held.clean[chosen], held.share[chosen])

    @staticmethod
    def _at(table: Tensor, step: Tensor, x: Tensor) -> Tensor:
        return table.to(x)[step][..., None]
