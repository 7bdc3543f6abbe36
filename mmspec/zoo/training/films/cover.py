"""Where the objects of training clips are among the latents, so that a loss can count these more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...world.moving import Mover
from ...world.pictures import PICTURE_SIDE
from .clip_sets import Kind, Member, blocks_of, spans
from .starts import CELL


def cover(members: Sequence[Member], kind: Kind) -> Tensor:
    """float32 [B, F, 8, 8], the share of each latent's pixels that objects fill, on average over its frames."""
    return torch.from_numpy(np.stack([_of_clip(one, blocks_of(kind)) for one in members]))


def _of_clip(member: Member, blocks: int) -> np.ndarray:
    bounds = [*(block for block, _ in member.scenes[1:]), blocks]
    parts = []
    for (first, scene), last in zip(member.scenes, bounds, strict=True):
        shown = _latent_spans(first, last)
        parts.append(sum(np.stack([_of_mover(mover, *span) for span in shown]) for mover in scene.movers))
    return np.concatenate(parts).clip(max=1).astype(np.float32)


def _latent_spans(first: int, last: int) -> list[tuple[int, int]]:
    """Of each latent frame of blocks `first` to `last`, its pixel frames, counted from the first of block `first`."""
    found, gone = [], 0
    for block in range(first, last):
        own = spans(block)
        found += [(start + gone, stop + gone) for start, stop in own]
        gone += own[-1][1]
    return found


def _of_mover(mover: Mover, first: int, stop: int) -> np.ndarray:
    lines = _lines(mover.pixels)
    places = [mover.at(frame) for frame in range(first, stop)]
    return sum(np.outer(lines[y], lines[x]) for x, y in places) / len(places)


@lru_cache(maxsize=32)
def _lines(pixels: int) -> np.ndarray:
    """[64, 8]: what share of each cell of a line is filled by a stretch of so many pixels that starts at a pixel."""
    at = np.arange(PICTURE_SIDE)[:, None]
    filled = (np.arange(PICTURE_SIDE) >= at) & (np.arange(PICTURE_SIDE) < at + pixels)
    return filled.reshape(PICTURE_SIDE, -1, CELL).mean(2)
