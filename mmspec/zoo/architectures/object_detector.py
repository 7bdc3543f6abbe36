"""The zoo's judge: a small convolutional reader that finds the objects of a picture, apart from CLIP in every way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from mmspec.zoo.world.image import IMAGE_SCENE_SIDE, ImageScene, named_objects
from mmspec.zoo.world.pixels import image_pixels
from mmspec.zoo.world.scene import COLORS, SHAPES

CELL = 8
GRID = IMAGE_SCENE_SIDE // CELL


@dataclass(frozen=True, slots=True)
class DetectorSize:
    """Channels at half, quarter and eighth of the side, and the threshold of an object's presence."""

    half: int = 24
    quarter: int = 40
    eighth: int = 56
    blocks: int = 3
    threshold: float = 0.4

    def __post_init__(self) -> None:
        if any(width < 8 or width % 8 for width in (self.half, self.quarter, self.eighth)) or self.blocks < 1:
            raise ValueError(
                f"DetectorSize: expected channels in multiples of 8 and blocks >= 1, got {self}; change them"
            )
        if not 0.0 < self.threshold < 1.0:
            raise ValueError(f"threshold: expected a probability between 0 and 1, got {self.threshold}; use 0.4")


class DetectedObject(NamedTuple):
    """An object the judge sees, with the cell of the 8x8 grid that its center lies in."""

    shape: str
    color: str
    row: int
    column: int


class DetectorNetwork(nn.Module):
    """Pixels float [B, 3, 64, 64] in -1..1 -> logits [B, 17, 8, 8]: a center here, its color, its shape."""

    def __init__(self, size: DetectorSize = DetectorSize()) -> None:
        super().__init__()
        self.size = size
        self.stem = image_stem(size.half, size.quarter, size.eighth)
        self.blocks = nn.ModuleList(conv_block(size.eighth, size.eighth, 3, 1) for _ in range(size.blocks))
        self.head = nn.Conv2d(size.eighth, 1 + len(COLORS) + len(SHAPES), 1)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.stem(pixels)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


def image_stem(half: int, quarter: int, eighth: int) -> nn.Sequential:
    """Pixels [B, 3, H, W] -> [B, eighth, H / 8, W / 8]."""
    return nn.Sequential(
        conv_block(3, half, 5, 2),
        conv_block(half, half, 3, 1),
        conv_block(half, quarter, 3, 2),
        conv_block(quarter, quarter, 3, 1),
        conv_block(quarter, eighth, 3, 2),
    )


def conv_block(before: int, after: int, kernel: int, stride: int) -> nn.Sequential:
    """A convolution without bias, eight groups normalised, and SiLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.GroupNorm(8, after), nn.SiLU()
    )


@dataclass(frozen=True, slots=True)
class ObjectDetector:
    """A trained reader: what is in a picture, and how much of what was asked for."""

    model: DetectorNetwork

    @torch.no_grad()
    def read(self, images: Sequence[Image.Image] | Tensor, batch: int = 64) -> list[list[DetectedObject]]:
        """The objects of every image, surest first. Takes PIL images or a uint8 tensor [N, 3, H, W] or [N, H, W, 3].

        Of neighbouring cells that hold an object the surest counts, and of cells two apart where they read the same.
        Raises ValueError for any other tensor.
        """
        device = self.model.head.weight.device
        logits = torch.cat([self.model(part.to(device)).float().cpu() for part in image_pixels(images).split(batch)])
        presence = logits[:, 0].sigmoid()
        color = logits[:, 1 : 1 + len(COLORS)].argmax(1)
        shape = logits[:, 1 + len(COLORS) :].argmax(1)
        sure: list[list[tuple[float, DetectedObject]]] = [[] for _ in logits]
        for image, row, column in torch.nonzero(presence > self.model.size.threshold).tolist():
            here = (image, row, column)
            one = DetectedObject(SHAPES[int(shape[here])], tuple(COLORS)[int(color[here])], row, column)
            sure[image].append((float(presence[here]), one))
        return [_without_neighbours([one for _, one in sorted(row, key=lambda pair: -pair[0])]) for row in sure]

    def agreement(self, images: Sequence[Image.Image] | Tensor, asked: Sequence[ImageScene | str]) -> float:
        """Share of the asked objects whose color and shape are both found in their image, each found object once.

        asked: per image its picture, a prompt, or a class name.   Raises ValueError when nothing is asked for.
        """
        found = self.read(images)
        if len(found) != len(asked):
            raise ValueError(f"asked: expected one entry per image, got {len(asked)} for {len(found)}; align them")
        right = total = 0
        for seen, wanted in zip(found, asked, strict=True):
            left = [(one.shape, one.color) for one in seen]
            for pair in objects_of(wanted):
                total += 1
                if pair in left:
                    left.remove(pair)
                    right += 1
        if not total:
            raise ValueError("asked: expected prompts that name an object by color and shape, got none; name one")
        return right / total


def _without_neighbours(found: list[DetectedObject]) -> list[DetectedObject]:
    kept: list[DetectedObject] = []
    for one in found:
        gaps = [(max(abs(one.row - it.row), abs(one.column - it.column)), one[:2] == it[:2]) for it in kept]
        if all(gap > (2 if same else 1) for gap, same in gaps):
            kept.append(one)
    return kept


def objects_of(asked: ImageScene | str) -> list[tuple[str, str]]:
    """The (shape, color) pairs that a picture holds or a prompt names."""
    if isinstance(asked, str):
        return named_objects(asked)
    return [(item.shape, item.color) for item in asked.items]
