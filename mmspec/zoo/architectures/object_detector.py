"""The zoo's object detector: a small convolutional network that is independent of CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from mmspec.io.validation import whole
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE, ImageScene, named_objects
from mmspec.zoo.world.pixels import image_pixels
from mmspec.zoo.world.scene import COLORS, SHAPES

CELL = 8
GRID = IMAGE_SCENE_SIDE // CELL


@dataclass(frozen=True, slots=True)
class DetectorSize:
    half: int = 24  # channels at half of the side
    quarter: int = 40
    eighth: int = 56
    blocks: int = 3  # residual, at an eighth of the side
    threshold: float = 0.4  # probability above which an object is reported

    def __post_init__(self) -> None:
        if any(width < 8 or width % 8 for width in (self.half, self.quarter, self.eighth)) or self.blocks < 1:
            raise ValueError(
                f"DetectorSize: expected channels in multiples of 8 and blocks >= 1, got {self}; change them"
            )
        if not 0.0 < self.threshold < 1.0:
            raise ValueError(f"threshold: expected a probability between 0 and 1, got {self.threshold}; use 0.4")


class DetectedObject(NamedTuple):
    shape: str
    color: str
    row: int  # of its center in the 8x8 grid
    column: int


class DetectorNetwork(nn.Module):
    """A network from pixels float [B, 3, 64, 64] in -1..1 to logits [B, 17, 8, 8] of presence, color and shape."""

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
    """Return a network from pixels [B, 3, H, W] to features [B, eighth, H / 8, W / 8]."""
    return nn.Sequential(
        conv_block(3, half, 5, 2),
        conv_block(half, half, 3, 1),
        conv_block(half, quarter, 3, 2),
        conv_block(quarter, quarter, 3, 1),
        conv_block(quarter, eighth, 3, 2),
    )


def conv_block(before: int, after: int, kernel: int, stride: int) -> nn.Sequential:
    """Return a convolution without bias, a group norm of eight groups, and SiLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.GroupNorm(8, after), nn.SiLU()
    )


@dataclass(frozen=True, slots=True)
class ObjectDetector:
    model: DetectorNetwork

    @torch.no_grad()
    def read(self, images: Sequence[Image.Image] | Tensor, batch: int = 64) -> list[list[DetectedObject]]:
        """Return the objects of every image, PIL or uint8 [N, 3, H, W] or [N, H, W, 3], in order of confidence. Of
        neighbouring cells with an object the most confident is reported, also of cells at distance two with the same
        object."""
        device = self.model.head.weight.device
        logits = torch.cat(
            [self.model(part.to(device)).float().cpu() for part in image_pixels(images).split(whole("batch", batch, 1))]
        )
        presence = logits[:, 0].sigmoid()
        color = logits[:, 1 : 1 + len(COLORS)].argmax(1)
        shape = logits[:, 1 + len(COLORS) :].argmax(1)
        sure: list[list[tuple[float, DetectedObject]]] = [[] for _ in logits]
        for image, row, column in torch.nonzero(presence > self.model.size.threshold).tolist():
            here = (image, row, column)
            item = DetectedObject(SHAPES[int(shape[here])], tuple(COLORS)[int(color[here])], row, column)
            sure[image].append((float(presence[here]), item))
        return [_without_neighbours([item for _, item in sorted(row, key=lambda pair: -pair[0])]) for row in sure]

    def agreement(self, images: Sequence[Image.Image] | Tensor, asked: Sequence[ImageScene | str]) -> float:
        """Return the share of the expected objects, of pictures, prompts or class names, that are detected with the
        right color and shape, each detection counted once."""
        detected = self.read(images)
        if len(detected) != len(asked):
            raise ValueError(f"asked: expected one entry per image, got {len(asked)} for {len(detected)}; align them")
        right = total = 0
        for seen, wanted in zip(detected, asked, strict=True):
            left = [(item.shape, item.color) for item in seen]
            for pair in objects_of(wanted):
                total += 1
                if pair in left:
                    left.remove(pair)
                    right += 1
        if not total:
            raise ValueError("asked: expected prompts that name an object by color and shape, got none; name an object")
        return right / total


def _without_neighbours(ordered: list[DetectedObject]) -> list[DetectedObject]:
    distinct: list[DetectedObject] = []
    for item in ordered:
        gaps = [(max(abs(item.row - it.row), abs(item.column - it.column)), item[:2] == it[:2]) for it in distinct]
        if all(gap > (2 if same else 1) for gap, same in gaps):
            distinct.append(item)
    return distinct


def objects_of(asked: ImageScene | str) -> list[tuple[str, str]]:
    """Return the (shape, color) pairs of a picture, or those that a prompt names."""
    if isinstance(asked, str):
        return named_objects(asked)
    return [(item.shape, item.color) for item in asked.items]
