"""Where the objects of training clips lie among the latents, and the heads that read them from a video model's states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mmspec.video.wan.transformer import CausalWan
from mmspec.zoo.training.objectives import IGNORED_LABEL
from mmspec.zoo.training.video.clips import CELL, Kind, TrainingClip, blocks_of, spans
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE
from mmspec.zoo.world.video import DIRECTIONS, LOOKS, Mover

_MOST = 0.25


def object_coverage(members: Sequence[TrainingClip], kind: Kind) -> Tensor:
    """float32 [B, F, 8, 8], the share of each latent's pixels that objects fill, on average over its frames."""
    return torch.from_numpy(np.stack([_coverage_of_clip(one, blocks_of(kind)) for one in members]))


def object_labels(members: Sequence[TrainingClip], kind: Kind, side: int) -> tuple[Tensor, Tensor]:
    """Whose object lies at most of each square of latents: its look and where it is heading, an index of DIRECTIONS.

    int64 [B, F, 8 // side, 8 // side] each, IGNORED_LABEL where no object fills a quarter of the square.
    """
    found = [_labels_of_clip(one, blocks_of(kind), side) for one in members]
    looks, headings = (torch.from_numpy(np.stack(some)) for some in zip(*found, strict=True))
    return looks, headings


def _coverage_of_clip(member: TrainingClip, blocks: int) -> np.ndarray:
    return np.concatenate([filled.sum(0) for filled, _ in _by_mover(member, blocks)]).clip(max=1).astype(np.float32)


def _labels_of_clip(member: TrainingClip, blocks: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    looks, headings = [], []
    for filled, movers in _by_mover(member, blocks):
        frames = filled.shape[1]
        share = rearrange(filled, "n f (h i) (w j) -> n f h i w j", i=side, j=side).mean((3, 5))
        which, some = share.argmax(0), share.max(0) >= _MOST
        look = np.array([mover.look for mover, _ in movers])
        heading = np.array([way for _, way in movers])  # [movers, F]
        looks.append(np.where(some, look[which], IGNORED_LABEL))
        headings.append(np.where(some, heading[which, np.arange(frames)[:, None, None]], IGNORED_LABEL))
    return np.concatenate(looks), np.concatenate(headings)


def _by_mover(member: TrainingClip, blocks: int) -> list[tuple[np.ndarray, list[tuple[Mover, list[int]]]]]:
    """Of each scene of a clip: the share of each latent that each of its movers fills, [movers, F, 8, 8], and these with where
    they are heading at the first pixel frame of each latent."""
    bounds, parts = [*(block for block, _ in member.scenes[1:]), blocks], []
    for (first, scene), last in zip(member.scenes, bounds, strict=True):
        shown = _latent_spans(first, last)
        filled = np.stack([np.stack([_coverage_of_mover(mover, *span) for span in shown]) for mover in scene.movers])
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


def _coverage_of_mover(mover: Mover, first: int, stop: int) -> np.ndarray:
    lines = _lines(mover.pixels)
    places = [mover.at(frame) for frame in range(first, stop)]
    return sum(np.outer(lines[y], lines[x]) for x, y in places) / len(places)


@lru_cache(maxsize=32)
def _lines(pixels: int) -> np.ndarray:
    """[64, 8]: what share of each cell of a line is filled by a stretch of so many pixels that starts at a pixel."""
    at = np.arange(IMAGE_SCENE_SIDE)[:, None]
    filled = (np.arange(IMAGE_SCENE_SIDE) >= at) & (np.arange(IMAGE_SCENE_SIDE) < at + pixels)
    return rearrange(filled, "start (cell pixel) -> start cell pixel", pixel=CELL).mean(2)


_RARE = 4.0  # how much more a token that holds an object counts where that is asked


class ObjectReader(nn.Module):
    """Of the states [B, S, dim] behind the middle layer of a model with tokens of `patch` latents."""

    def __init__(self, width: int, patch: int):
        super().__init__()
        self.patch = patch
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.look, self.heading = nn.Linear(2 * width, LOOKS), nn.Linear(2 * width, len(DIRECTIONS))
        self.there = nn.Linear(2 * width, 1)

    def loss(self, states: Tensor, looks: Tensor, headings: Tensor) -> tuple[Tensor, float]:
        """Mean cross-entropy of whether a token holds an object, over all, and of look and heading over those that do; and the
        share of these whose look is read right.

        looks, headings: int64 [B, F, h, w], a label a token, see `object_labels`.
        """
        looks, headings = (labels.flatten(1).to(states.device) for labels in (looks, headings))
        here = looks != IGNORED_LABEL
        hidden = self.mix(F.rms_norm(states.float(), states.shape[-1:]))
        rare = torch.full((), _RARE, device=states.device)
        loss = F.binary_cross_entropy_with_logits(self.there(hidden)[..., 0], here.float(), pos_weight=rare)
        if not here.any():
            return loss, 0.0
        logits = self.look(hidden[here])
        loss = loss + F.cross_entropy(logits, looks[here]) + F.cross_entropy(self.heading(hidden[here]), headings[here])
        return loss, float((logits.argmax(-1) == looks[here]).float().mean())


@contextmanager
def middle_states(model: CausalWan) -> Iterator[list[Tensor]]:
    """Collects what every pass inside leaves behind the middle layer, [B, S, dim] each."""
    seen: list[Tensor] = []
    behind = model.blocks[len(model.blocks) // 2].norm1  # is handed what the layer before has left
    hook = behind.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        hook.remove()


def of_last_passes(seen: Sequence[Tensor], count: int) -> Tensor:
    """The states of the last `count` passes, which are the noisy ones, one behind the other."""
    return torch.cat(list(seen[-count:]), 1)
