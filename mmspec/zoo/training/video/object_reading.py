"""Object labels among the latents of training clips, and the heads that read objects from a video model's states."""

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
    """Return float32 [B, F, 8, 8]: the share of each latent's pixels that objects fill, averaged over its frames."""
    return torch.from_numpy(np.stack([_coverage_of_clip(member, blocks_of(kind)) for member in members]))


def object_labels(members: Sequence[TrainingClip], kind: Kind, side: int) -> tuple[Tensor, Tensor]:
    """Return look and heading (an index of DIRECTIONS) of the object that covers most of each square of `side` latents,
    int64 [B, F, 8 // side, 8 // side], IGNORED_LABEL where no object fills a quarter of it."""
    labels = [_labels_of_clip(member, blocks_of(kind), side) for member in members]
    looks, headings = (torch.from_numpy(np.stack(some)) for some in zip(*labels, strict=True))
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
    """Return for each scene of a clip the share of each latent that each mover fills, [movers, F, 8, 8], and the movers
    with their headings at the first pixel frame of each latent."""
    bounds, parts = [*(block for block, _ in member.scenes[1:]), blocks], []
    for (first, scene), last in zip(member.scenes, bounds, strict=True):
        shown = _latent_spans(first, last)
        filled = np.stack([np.stack([_coverage_of_mover(mover, *span) for span in shown]) for mover in scene.movers])
        ways = [[tuple(DIRECTIONS).index(mover.heading(start)) for start, _ in shown] for mover in scene.movers]
        parts.append((filled, list(zip(scene.movers, ways, strict=True))))
    return parts


def _latent_spans(first: int, last: int) -> list[tuple[int, int]]:
    """Return the pixel frames of each latent frame of blocks `first` to `last`, from the start of block `first`."""
    latents, gone = [], 0
    for block in range(first, last):
        own = spans(block)
        latents += [(start + gone, stop + gone) for start, stop in own]
        gone += own[-1][1]
    return latents


def _coverage_of_mover(mover: Mover, first: int, stop: int) -> np.ndarray:
    lines = _lines(mover.pixels)
    places = [mover.at(frame) for frame in range(first, stop)]
    return sum(np.outer(lines[y], lines[x]) for x, y in places) / len(places)


@lru_cache(maxsize=32)
def _lines(pixels: int) -> np.ndarray:
    """Return [64, 8]: by first pixel, the share of each cell of a line that a segment of `pixels` covers."""
    at = np.arange(IMAGE_SCENE_SIDE)[:, None]
    filled = (np.arange(IMAGE_SCENE_SIDE) >= at) & (np.arange(IMAGE_SCENE_SIDE) < at + pixels)
    return rearrange(filled, "start (cell pixel) -> start cell pixel", pixel=CELL).mean(2)


_RARE = 4.0  # weight of a token with an object in the loss of presence


class ObjectReader(nn.Module):
    """Heads that read objects from the states [B, S, dim] after the middle layer of a video model; a token has `patch`
    latents per side."""

    def __init__(self, width: int, patch: int):
        super().__init__()
        self.patch = patch
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.look, self.heading = nn.Linear(2 * width, LOOKS), nn.Linear(2 * width, len(DIRECTIONS))
        self.there = nn.Linear(2 * width, 1)

    def loss(self, states: Tensor, looks: Tensor, headings: Tensor) -> tuple[Tensor, float]:
        """Return the cross-entropy of presence over all tokens of states [B, S, dim], and of look and heading (see
        `object_labels`), int64 [B, F, h, w], over those with an object, and the share of the latter whose look is read
        correctly."""
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
    """Yield a list that collects the states after the middle layer, [B, S, dim], of every forward pass in the block."""
    seen: list[Tensor] = []
    behind = model.blocks[len(model.blocks) // 2].norm1  # its input is the output of the layer before
    hook = behind.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        hook.remove()


def of_last_passes(seen: Sequence[Tensor], count: int) -> Tensor:
    """Return the concatenated states of the last `count` forward passes, which are the noisy passes."""
    return torch.cat(list(seen[-count:]), 1)
