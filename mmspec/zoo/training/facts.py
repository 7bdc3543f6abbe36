"""Facts of pictures and moving scenes as labels of heads, and the prompt encoders trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import T5EncoderModel

from mmspec.zoo.architectures.caption_encoder import OWN_HEADS, FactReader, new_encoder
from mmspec.zoo.training.objectives import FactTable, ObjectFacts
from mmspec.zoo.world.image import (
    CLASSES,
    IMAGE_SCENE_SIDE,
    LONGEST,
    PLACES,
    ImageScene,
    image_prompt,
    image_prompt_tokenizer,
    sample_image_scene,
)
from mmspec.zoo.world.scene import BACKDROPS, COLORS, KINDS, SHAPES, TONES
from mmspec.zoo.world.video import DIRECTIONS, LOOKS, SPEEDS, VideoScene, sample_video_scene
from mmspec.zoo.world.video_prompts import LONGEST as VIDEO_LONGEST
from mmspec.zoo.world.video_prompts import video_prompt, video_prompt_tokenizer

Square = tuple[int, int, int, int]  # left, top and side in pixels, and a label


def _image_objects(scene: ImageScene) -> list[ObjectFacts]:
    objects = []
    for item in scene.items:
        color, place = tuple(COLORS).index(item.color), PLACES.index(item.place)
        size = ("small", "large").index(item.size)
        in_slot = {"color": color, "shape": SHAPES.index(item.shape), "size": size}
        own = {"color": color, "place": place, "size": size}
        objects.append(ObjectFacts(item.label, place, in_slot, (item.shape, item.color), own))
    return objects


IMAGE_FACTS = FactTable(
    "pairs",
    CLASSES,
    len(PLACES),
    {"color": len(COLORS), "shape": len(SHAPES), "size": 2},
    SHAPES,
    OWN_HEADS,
    _image_objects,
)


def code_labels(pictures: list[ImageScene], side: int) -> Tensor:
    """Return int64 [B, side * side]: the class of the object whose square covers most of a code, or CLASSES."""
    squares = [[(item.x, item.y, item.pixels, item.label) for item in picture.items] for picture in pictures]
    return _grid_labels(squares, side, CLASSES).flatten(1)


def _grid_labels(frames: Sequence[Sequence[Square]], side: int, empty: int, border: int = 0) -> Tensor:
    """Return int64 [frames, side, side]: the label of the square that covers most of a cell, `empty` for none. `border`
    cells around a square belong to it."""
    labels, pixels = torch.full((len(frames), side, side), empty), IMAGE_SCENE_SIDE // side
    for grid, squares in zip(labels, frames, strict=True):
        for x, y, size, label in squares:
            rows, columns = (
                slice(max(round(at / pixels) - border, 0), round((at + size) / pixels) + border) for at in (y, x)
            )
            grid[rows, columns] = label
    return labels


def object_cells(pictures: list[ImageScene], side: int) -> Tensor:
    """Return bool [B, side * side]: the codes that an object's square touches, and their neighbours."""
    cells, pixels = torch.zeros(len(pictures), side, side, dtype=torch.bool), IMAGE_SCENE_SIDE // side
    for grid, picture in zip(cells, pictures, strict=True):
        for item in picture.items:
            top, left = max(item.y // pixels - 1, 0), max(item.x // pixels - 1, 0)
            grid[top : (item.y + item.pixels - 1) // pixels + 2, left : (item.x + item.pixels - 1) // pixels + 2] = True
    return cells.flatten(1)


def train_image_prompt_encoder(
    folder: Path, dim: int, steps: int = 3000, batch: int = 64, resume: bool = True
) -> FactReader:
    """Train a caption encoder, for a transformer of width `dim`, on prompts of pictures that are never rendered."""
    tokenizer = image_prompt_tokenizer()
    return IMAGE_FACTS.train_reader(
        FactReader(new_encoder(tokenizer), dim),
        tokenizer,
        LONGEST,
        sample_image_scene,
        image_prompt,
        folder,
        steps=steps,
        batch=batch,
        resume=resume,
    )


# facts of a scene: its looks, then facts by color, with the last index for no object of the color
VIDEO_HEADS = {
    "looks": LOOKS,
    "direction": len(COLORS) * (len(DIRECTIONS) + 1),
    "speed": len(COLORS) * (len(SPEEDS) + 1),
    "tone": len(TONES),
    "backdrop": len(BACKDROPS),
}
# facts of the object that a word names
VIDEO_OWN_HEADS = {"color": len(COLORS), "direction": len(DIRECTIONS), "speed": len(SPEEDS)}


def _movers(scene: VideoScene) -> list[ObjectFacts]:
    objects = []
    for mover in scene.movers:
        color = tuple(COLORS).index(mover.color)
        way = {"direction": tuple(DIRECTIONS).index(mover.direction), "speed": tuple(SPEEDS).index(mover.speed)}
        objects.append(ObjectFacts(mover.look, color, way, (mover.kind, mover.color), {"color": color, **way}))
    return objects


VIDEO_FACTS = FactTable(
    "looks",
    LOOKS,
    len(COLORS),
    {"direction": len(DIRECTIONS), "speed": len(SPEEDS)},
    KINDS,
    VIDEO_OWN_HEADS,
    _movers,
    all_right=("direction",),
)


def look_labels(scenes: list[VideoScene], frames: int, side: int, border: int = 0) -> Tensor:
    """Return int64 [B, frames * side * side]: the look of the object whose square, with `border` codes around it,
    covers most of a code, or LOOKS."""
    squares = [
        [(*mover.at(frame), mover.pixels, mover.look) for mover in scene.movers]
        for scene in scenes
        for frame in range(frames)
    ]
    return _grid_labels(squares, side, LOOKS, border).view(len(scenes), -1)


def train_video_prompt_encoder(
    folder: Path, dim: int, frames: int, steps: int = 3000, batch: int = 64, resume: bool = True
) -> FactReader:
    """Train a new caption encoder, for a transformer of width `dim`, on prompts that mention bounces within `frames`
    frames."""
    encoder = new_encoder(video_prompt_tokenizer())
    return train_video_prompt_projection(encoder, folder, dim, frames, steps, batch, resume, frozen=False)


def train_video_prompt_projection(
    encoder: T5EncoderModel,
    folder: Path,
    dim: int,
    frames: int,
    steps: int = 400,
    batch: int = 64,
    resume: bool = True,
    *,
    frozen: bool = True,
) -> FactReader:
    """Train a projection to width `dim` for an existing caption encoder, and the encoder itself unless it is frozen."""
    reader = FactReader(encoder.requires_grad_(not frozen), dim, VIDEO_HEADS, VIDEO_OWN_HEADS)
    return VIDEO_FACTS.train_reader(
        reader,
        video_prompt_tokenizer(),
        VIDEO_LONGEST,
        sample_video_scene,
        lambda scene, step: video_prompt(scene, step, frames),
        folder,
        steps=steps,
        batch=batch,
        resume=resume,
    )
