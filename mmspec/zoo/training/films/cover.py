"""Where the objects of training clips are among the latents, so that a loss can count these more and ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...world.moving import DIRECTIONS, Mover
from ...world.pictures import PICTURE_SIDE
from ..fact_reading import IGNORE
from .clip_sets import Kind, Member, blocks_of, spans
from .starts import CELL

_MOST = 0.25


def cover(members: Sequence[Member], kind: Kind) -> Tensor:
    """float32 [B, F, 8, 8], the share of each latent's pixels that objects fill, on average over its frames."""
    return torch.from_numpy(np.stack([_of_clip(one, blocks_of(kind)) for one in members]))


def held(members: Sequence[Member], kind: Kind, side: int) -> tuple[Tensor, Tensor]:
    """Whose object lies at most of each square of latents: its look and where it is heading, an index of DIRECTIONS.

    int64 [B, F, 8 // side, 8 // side] each, IGNORE where no object fills a quarter of the square.
    """
    found = [_held_of_clip(one, blocks_of(kind), side) for one in members]
    looks, headings = (torch.from_numpy(np.stack(some)) for some in zip(*found, strict=True))
    return looks, headings


def _of_clip(member: Member, blocks: int) -> np.ndarray:
    return np.concatenate([filled.sum(0) for filled, _ in _by_mover(member, blocks)]).clip(max=1).astype(np.float32)


def _held_of_clip(member: Member, blocks: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    looks, headings = [], []
    for filled, movers in _by_mover(member, blocks):
        count, frames = filled.shape[:2]
        share = filled.reshape(count, frames, 8 // side, side, 8 // side, side).mean((3, 5))
        which, some = share.argmax(0), share.max(0) >= _MOST
        look = np.array([mover.look for mover, _ in movers])
        heading = np.array([way for _, way in movers])  # [movers, F]
        looks.append(np.where(some, look[which], IGNORE))
        headings.append(np.where(some, heading[which, np.arange(frames)[:, None, None]], IGNORE))
    return np.concatenate(looks), np.concatenate(headings)


def _by_mover(member: Member, blocks: int) -> list[tuple[np.ndarray, list[tuple[Mover, list[int]]]]]:
    """Of each scene of a clip: the share of each latent that each of its movers fills, [movers, F, 8, 8], and these with where
    they are heading at the first pixel frame of each latent."""
    bounds, parts = [*(block for block, _ in member.scenes[1:]), blocks], []
    for (first, scene), last in zip(member.scenes, bounds, strict=True):
        shown = _latent_spans(first, last)
        filled = np.stack([np.stack([_of_mover(mover, *span) for span in shown]) for mover in scene.movers])
        ways = [[tuple(DIRECTIONS).index(mover.heading(start)) for start, _ in shown] for mover in scene.movers]
        parts.append((filled, list(zip(scene.movers, ways, strict=True))))
    return parts


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
