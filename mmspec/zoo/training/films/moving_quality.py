"""Videos of the zoo's models, and how much of what was asked for is in them, read without any model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mmspec.video.pipeline import BlockVideoPipeline

from ...world.moving import MovingScene
from ...world.moving_frames import render_frames
from ...world.moving_prompts import moving_prompt, named_movers
from ...world.tracking import direction_of, shape_of, track
from ...world.words import SHAPES


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


def drawn_shares(pipe: BlockVideoPipeline, scenes: Sequence[MovingScene], blocks: int) -> dict[str, float]:
    """`shares` of videos drawn for the prompts of scenes, beside those of the scenes rendered."""
    prompts = [moving_prompt(scene, 0) for scene in scenes]
    videos = pipe(prompts, seed=list(range(len(scenes))), blocks=blocks).videos
    rendered = [render_frames(scene, len(video)) for scene, video in zip(scenes, videos, strict=True)]
    real = shares(rendered, prompts)
    return {**shares(videos, prompts), **{f"{name}_rendered": value for name, value in real.items()}}
