"""Videos of the zoo's models, and how much of what was asked for is in them, read without any model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from mmspec.core.keys import Keys
from mmspec.video.generation.noise import KeyedBlockNoise

from ..files.video import VideoParts
from ..world.moving import MovingScene
from ..world.moving_frames import render_frames
from ..world.moving_prompts import moving_prompt, named_movers
from ..world.tracking import direction_of, shape_of, track
from ..world.words import SHAPES
from .moving_clips import clip_bytes

SIDE = 64


@torch.no_grad()
def drawn(parts: VideoParts, prompts: Sequence[str], seeds: Sequence[int], blocks: int) -> list[np.ndarray]:
    """A video uint8 [N, 64, 64, 3] for each prompt, by the model alone."""
    stride = parts.vae.layout.stride
    text = parts.encoder(list(prompts))
    state = parts.model.open(text, KeyedBlockNoise(Keys.of(list(seeds), len(prompts))), (SIDE // stride,) * 2)
    film: list[torch.Tensor] = []
    for _ in range(blocks):
        film.append(state.generate(film))
    return [clip_bytes(one) for one in parts.vae.decode(torch.cat(film, 2))[0]]


def shares(videos: Iterable[np.ndarray], prompts: Iterable[str]) -> dict[str, float]:
    """Of the objects that prompts name: in what share of the frames the color is seen, how many go the way they should at
    first, and how many shapes are the right ones."""
    marks: dict[str, list[float]] = {"seen": [], "direction": [], "shape": []}
    for frames, prompt in zip(videos, prompts, strict=True):
        for kind, color, direction in named_movers(prompt):
            found = track(frames, color)
            marks["seen"].append(float(found.seen.mean()))
            marks["direction"].append(float(direction_of(found) == direction))
            if kind in SHAPES:
                marks["shape"].append(float(shape_of(found) == kind))
    return {name: float(np.mean(values)) if values else 0.0 for name, values in marks.items()}


def drawn_shares(parts: VideoParts, scenes: Sequence[MovingScene], blocks: int, batch: int = 8) -> dict[str, float]:
    """`shares` of videos drawn for the prompts of scenes, beside those of the scenes rendered."""
    prompts, videos = [moving_prompt(scene, 0) for scene in scenes], []
    for first in range(0, len(scenes), batch):
        asked = prompts[first : first + batch]
        videos += drawn(parts, asked, range(first, first + len(asked)), blocks)
    rendered = [render_frames(scene, len(video)) for scene, video in zip(scenes, videos, strict=True)]
    real = shares(rendered, prompts)
    return {**shares(videos, prompts), **{f"{name}_rendered": value for name, value in real.items()}}
