"""Jacobi decoding with one mistake each: enumeration must tell it from the real one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.rules import BlockVerification
from mmspec.imagegen.jacobi import SJD
from mmspec.imagegen.jacobi.jacobi_drafts import JacobiState


@dataclass(frozen=True)
class With:
    """A drafter whose state is of another class."""

    settings: SJD
    state: type[JacobiState]

    @property
    def window(self) -> int:
        return self.settings.window

    @property
    def name(self) -> str:
        return self.settings.name

    def open(self, target) -> JacobiState:
        return self.state(self.settings, target)


class OldLawOfSurvivors(JacobiState):
    """Values that survive a refresh keep the law they were first drawn from, as in the public maximal samplers."""

    def _draw(self, target, window, keys) -> tuple[Tensor, Tensor]:
        scores, value = super()._draw(target, window, keys)
        if self.scores is None:
            return scores, value
        kept = min(value.shape[1], self.value.shape[1])
        survives = torch.arange(kept) < (self.known - 1)[:, None]
        same = survives & (value[:, :kept] == self.value[:, :kept])
        scores[:, :kept] = torch.where(same[..., None], self.scores[:, :kept], scores[:, :kept])
        return scores, value


class NewLawOfOldValues(JacobiState):
    """Every value stays as it was drawn, under the newest law."""

    def _draw(self, target, window, keys) -> tuple[Tensor, Tensor]:
        scores, value = super()._draw(target, window, keys)
        if self.scores is None:
            return scores, value
        kept = min(value.shape[1], self.value.shape[1])
        survives = torch.arange(kept) < (self.known - 1)[:, None]
        value[:, :kept] = torch.where(survives, self.value[:, :kept], value[:, :kept])
        return scores, value


class OffByOne(JacobiState):
    """Every position takes the law of the position before it as its own, while the value comes from the right one."""

    def _draw(self, target, window, keys) -> tuple[Tensor, Tensor]:
        scores, value = super()._draw(target, window, keys)
        return torch.cat((scores[:, :1], scores[:, :-1]), 1), value


class UniformRecord(JacobiState):
    """Copied values with a uniform law on record."""

    def _draw(self, target, window, keys) -> tuple[Tensor, Tensor]:
        scores, value = super()._draw(target, window, keys)
        return torch.where(window.unscored[..., None], 0.0, scores), value


class FrameBeforeOnRecord(JacobiState):
    """Every value of a video stands on record with the law of its place in the frame before, whatever it was drawn from."""

    def _draw(self, target, window, keys) -> tuple[Tensor, Tensor]:
        scores, value = super()._draw(target, window, keys)
        before = window.inside - self.sources.frame[window.inside]
        there = (self.sources.earlier[window.inside] > 0) & (before <= window.horizon)
        return torch.where(there[..., None], self.laws.read(before), scores), value


class NewestFrameNotYetDrawn(JacobiState):
    """Copies of the frame before are taken to be drawn from the law of that place, which they are not: they are its value."""

    def _draw(self, target, window, keys) -> tuple[Tensor, Tensor]:
        scores, value = super()._draw(target, window, keys)
        near = self.sources.near("frame", window)
        known = window.unscored & (near <= window.horizon)
        return torch.where(known[..., None], self.laws.read(near), scores), value


class ShortSighted(BlockVerification):
    """Block verification that takes drafts which live on."""

    looks_ahead = False


def keep_above(tau: float):
    """SJD++ as described by third parties: the old value stays when p / q exceeds `tau`, else it is drawn from p anew."""

    def law(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
        at = token[..., None]
        stays = p.gather(-1, at) > tau * q.gather(-1, at)
        return torch.where(stays, torch.zeros_like(p).scatter_(-1, at, 1.0), p)

    return law
