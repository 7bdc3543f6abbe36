"""Facts of a video scene as labels of heads, and the training of the prompt encoder on them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import T5EncoderModel

from mmspec.zoo.architectures.caption_encoder import FactReader, new_encoder
from mmspec.zoo.training.objectives import FactTable, ObjectFacts
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE
from mmspec.zoo.world.scene import BACKDROPS, COLORS, KINDS, TONES
from mmspec.zoo.world.video import DIRECTIONS, LOOKS, SPEEDS, VideoScene, sample_video_scene
from mmspec.zoo.world.video_prompts import LONGEST, video_prompt, video_prompt_tokenizer

# of a scene: which looks it has, then by color, the last index for no object of the color
HEADS = {"looks": LOOKS, "direction": len(COLORS) * (len(DIRECTIONS) + 1), "speed": len(COLORS) * (len(SPEEDS) + 1),
         "tone": len(TONES), "backdrop": len(BACKDROPS)}  # fmt: skip
# of the word of a kind: facts of its object
OWN_HEADS = {"color": len(COLORS), "direction": len(DIRECTIONS), "speed": len(SPEEDS)}


def _objects(scene: VideoScene) -> list[ObjectFacts]:
    objects = []
    for mover in scene.movers:
        color = tuple(COLORS).index(mover.color)
        way = {"direction": tuple(DIRECTIONS).index(mover.direction), "speed": tuple(SPEEDS).index(mover.speed)}
        objects.append(ObjectFacts(mover.look, color, way, (mover.kind, mover.color), {"color": color, **way}))
    return objects


VIDEO_FACTS = FactTable(
    "looks", LOOKS, len(COLORS), {"direction": len(DIRECTIONS), "speed": len(SPEEDS)}, KINDS, OWN_HEADS, _objects,
    all_right=("direction",),
)  # fmt: skip


def look_labels(scenes: list[VideoScene], frames: int, side: int, border: int = 0) -> Tensor:
    """int64 [B, frames * side * side], the look of the object whose square most of a code lies in, LOOKS where there is
    none.   border: codes around the square that count as its own."""
    found, pixels = torch.full((len(scenes), frames, side, side), LOOKS), IMAGE_SCENE_SIDE // side
    for grids, scene in zip(found, scenes, strict=True):
        for mover in scene.movers:
            for frame, grid in enumerate(grids):
                cols, rows = (
                    (max(round(at / pixels) - border, 0), round((at + mover.pixels) / pixels) + border)
                    for at in mover.at(frame)
                )
                grid[rows[0] : rows[1], cols[0] : cols[1]] = mover.look
    return found.flatten(1)


def train_video_prompt_encoder(
    folder: Path, dim: int, frames: int, steps: int = 3000, batch: int = 64, resume: bool = True
) -> FactReader:
    """Train a new encoder.   dim: of the transformer that will read the captions.   frames: of whose bounces they tell."""
    encoder = new_encoder(video_prompt_tokenizer())
    return train_video_prompt_projection(encoder, folder, dim, frames, steps, batch, resume, frozen=False)


def train_video_prompt_projection(
    encoder: T5EncoderModel, folder: Path, dim: int, frames: int, steps: int = 400, batch: int = 64, resume: bool = True,
    *, frozen: bool = True,
) -> FactReader:  # fmt: skip
    """`train_video_prompt_encoder` for an encoder that exists; a frozen encoder gets a projection to another width alone."""
    reader = FactReader(encoder.requires_grad_(not frozen), dim, HEADS, OWN_HEADS)
    return VIDEO_FACTS.train_reader(
        reader, video_prompt_tokenizer(), LONGEST, sample_video_scene, lambda scene, step: video_prompt(scene, step, frames),
        folder, steps=steps, batch=batch, resume=resume,
    )  # fmt: skip
