"""Where objects of a moving scene start, read off the noise that its first block is drawn from.

A prompt says what moves which way, and not where. A model of few steps that is trained on noise drawn apart from the scene
predicts the mean of all starts at first, a smear, and decides late. Here the noise of a training clip is drawn first and its
objects are put where that noise already looks most like them: pairs of noise and clip, as minibatch couplings of flow matching
have them ("Multisample Flow Matching"), but of a whole law. The noise is white, drawn before and whatever the scene is, so a
sampler's is of the same law; what follows from it is only where objects start. Paths from noise to clip are then nearly
straight, and a handful of Euler steps is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...world.moving import DIRECTIONS, STEADY, Mover, MovingScene
from ...world.pictures import PICTURE_SIDE
from ...world.words import COLORS

CELL = 8  # pixels of a latent's side
_BLUR = 0.8  # of an object's mark, in latents
_HALF = PICTURE_SIDE // 2


def own_noise(seed: int, channels: int, frames: int) -> Tensor:
    """float32 [C, F, 8, 8], the noise that decides the starts of a clip."""
    side = PICTURE_SIDE // CELL
    return torch.randn(channels, frames, side, side, generator=torch.Generator().manual_seed(seed))


def placed(scene: MovingScene, noise: Tensor, spans: Sequence[tuple[int, int]]) -> MovingScene:
    """The scene with its movers where the noise has them; kinds, colors, steps and background stay.

    noise: [C, F, 8, 8]; an object's mark is in the channel of its color.   spans: of each latent frame, the first pixel frame
    it stands for and the one after the last.
    """
    movers, noise = scene.movers, noise.numpy()
    if len(movers) == 1:
        return replace(scene, movers=(_best(movers[0], noise, spans, None)[1],))
    orders = []
    for halves in ((0, 1), (1, 0)):  # which of them has which half
        found = [_best(mover, noise, spans, half) for mover, half in zip(movers, halves, strict=True)]
        orders.append((sum(score for score, _ in found), tuple(mover for _, mover in found)))
    return replace(scene, movers=max(orders, key=lambda order: order[0])[1])


def marked(scene: MovingScene, channels: int) -> list[int]:
    """The channels of the noise that a scene's starts follow from; the others may be drawn anew."""
    return sorted({channel_of(mover, channels) for mover in scene.movers})


def channel_of(mover: Mover, channels: int) -> int:
    return tuple(COLORS).index(mover.color) % channels


def _best(mover: Mover, noise: np.ndarray, spans: Sequence[tuple[int, int]], half: int | None) -> tuple[float, Mover]:
    """Its highest score over all starts it may have, and the mover that starts there."""
    channel = noise[channel_of(mover, len(noise))]
    step_x, step_y = DIRECTIONS[mover.direction]
    columns, rows = (_starts(step * abs(size), mover.pixels, half if not step else None)
                     for step, size in ((step_x, mover.dx), (step_y, mover.dy)))  # fmt: skip
    score = np.zeros((len(rows), len(columns)))
    for frame, span in zip(channel, spans, strict=True):
        across, down = (_centres(starts, step, mover, span)
                        for starts, step in ((columns, mover.dx), (rows, mover.dy)))  # fmt: skip
        score += _marks()[down] @ frame @ _marks()[across].T
    row, column = np.unravel_index(score.argmax(), score.shape)
    return float(score.max()), replace(mover, x=int(columns[column]), y=int(rows[row]))


def _starts(step: int, pixels: int, half: int | None) -> np.ndarray:
    """Where along an axis an object may start, as `moving` has it."""
    room = PICTURE_SIDE - pixels
    if step:
        free = np.arange(room - STEADY * abs(step) + 1)
        return free if step > 0 else free + STEADY * abs(step)
    return np.arange(room + 1) if half is None else np.arange(_HALF - pixels + 1) + half * _HALF


def _centres(starts: np.ndarray, step: int, mover: Mover, span: tuple[int, int]) -> np.ndarray:
    """int64 [S], the pixel of its middle on average over the frames of a latent, for every start."""
    at = (starts[:, None] + step * np.arange(*span)) % (2 * mover.room)
    return np.rint(np.minimum(at, 2 * mover.room - at).mean(1) + (mover.pixels - 1) / 2).astype(int)


@lru_cache(maxsize=1)
def _marks() -> np.ndarray:
    """[64, 8], of norm one a row: how much of each latent belongs to an object whose middle is at a pixel."""
    middles = (np.arange(PICTURE_SIDE // CELL) + 0.5) * CELL
    away = (np.arange(PICTURE_SIDE)[:, None] + 0.5 - middles) / CELL
    weight = np.exp(-0.5 * (away / _BLUR) ** 2)
    return weight / np.linalg.norm(weight, axis=1, keepdims=True)
