"""Facts of an image scene as labels of heads, and the training of the prompt encoder on them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

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
from mmspec.zoo.world.scene import COLORS, SHAPES


def _objects(scene: ImageScene) -> list[ObjectFacts]:
    objects = []
    for item in scene.items:
        color, place = tuple(COLORS).index(item.color), PLACES.index(item.place)
        size = ("small", "large").index(item.size)
        in_slot = {"color": color, "shape": SHAPES.index(item.shape), "size": size}
        own = {"color": color, "place": place, "size": size}
        objects.append(ObjectFacts(item.label, place, in_slot, (item.shape, item.color), own))
    return objects


IMAGE_FACTS = FactTable(
    "pairs", CLASSES, len(PLACES), {"color": len(COLORS), "shape": len(SHAPES), "size": 2}, SHAPES, OWN_HEADS, _objects
)


def code_labels(pictures: list[ImageScene], side: int) -> Tensor:
    """int64 [B, side * side], the class of the object whose square most of a code lies in, CLASSES where there is none."""
    found, pixels = torch.full((len(pictures), side, side), CLASSES), IMAGE_SCENE_SIDE // side
    for grid, picture in zip(found, pictures, strict=True):
        for item in picture.items:
            rows, columns = ((round(at / pixels), round((at + item.pixels) / pixels)) for at in (item.y, item.x))
            grid[rows[0] : rows[1], columns[0] : columns[1]] = item.label
    return found.flatten(1)


def object_cells(pictures: list[ImageScene], side: int) -> Tensor:
    """bool [B, side * side], the codes that an object's square touches or borders on."""
    found, pixels = torch.zeros(len(pictures), side, side, dtype=torch.bool), IMAGE_SCENE_SIDE // side
    for grid, picture in zip(found, pictures, strict=True):
        for item in picture.items:
            top, left = max(item.y // pixels - 1, 0), max(item.x // pixels - 1, 0)
            grid[top : (item.y + item.pixels - 1) // pixels + 2, left : (item.x + item.pixels - 1) // pixels + 2] = True
    return found.flatten(1)


def train_image_prompt_encoder(
    folder: Path, dim: int, steps: int = 3000, batch: int = 64, resume: bool = True
) -> FactReader:
    """Train on prompts of pictures that are never rendered.   dim: of the transformer that will read the captions."""
    tokenizer = image_prompt_tokenizer()
    return IMAGE_FACTS.train_reader(
        FactReader(new_encoder(tokenizer), dim), tokenizer, LONGEST, sample_image_scene, image_prompt, folder,
        steps=steps, batch=batch, resume=resume,
    )  # fmt: skip
