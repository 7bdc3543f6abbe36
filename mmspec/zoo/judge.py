"""The zoo's judge: a small convolutional reader that finds the objects of a picture, apart from CLIP in every way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.core.config_fields import from_fields
from mmspec.core.files import replacing, write_json_atomic
from mmspec.core.loading import load_module
from mmspec.core.readers import naming, read_json

from .picture_batches import image_pixels
from .world.pictures import PICTURE_SIDE, Picture
from .world.prompts import named_objects
from .world.words import COLORS, SHAPES

CELL = 8
GRID = PICTURE_SIDE // CELL


@dataclass(frozen=True, slots=True)
class JudgeSize:
    """Channels at half, quarter and eighth of the side, and the threshold of an object's presence."""

    half: int = 24
    quarter: int = 40
    eighth: int = 56
    blocks: int = 3
    threshold: float = 0.4

    def __post_init__(self) -> None:
        if any(width < 8 or width % 8 for width in (self.half, self.quarter, self.eighth)) or self.blocks < 1:
            raise ValueError(f"JudgeSize: expected channels in multiples of 8 and blocks >= 1, got {self}; change them")
        if not 0.0 < self.threshold < 1.0:
            raise ValueError(f"threshold: expected a probability between 0 and 1, got {self.threshold}; use 0.4")


class Found(NamedTuple):
    """An object the judge sees, with the cell of the 8x8 grid that its center lies in."""

    shape: str
    color: str
    row: int
    column: int


class Reader(nn.Module):
    """Pixels float [B, 3, 64, 64] in -1..1 -> logits [B, 17, 8, 8]: a center here, its color, its shape."""

    def __init__(self, size: JudgeSize = JudgeSize()) -> None:
        super().__init__()
        self.size = size
        self.stem = nn.Sequential(
            _layer(3, size.half, 5, 2),
            _layer(size.half, size.half, 3, 1),
            _layer(size.half, size.quarter, 3, 2),
            _layer(size.quarter, size.quarter, 3, 1),
            _layer(size.quarter, size.eighth, 3, 2),
        )
        self.blocks = nn.ModuleList(_layer(size.eighth, size.eighth, 3, 1) for _ in range(size.blocks))
        self.head = nn.Conv2d(size.eighth, 1 + len(COLORS) + len(SHAPES), 1)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.stem(pixels)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


def _layer(before: int, after: int, kernel: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.GroupNorm(8, after), nn.SiLU()
    )


@dataclass(frozen=True, slots=True)
class ImageJudge:
    """A trained reader: what is in a picture, and how much of what was asked for."""

    model: Reader

    @torch.no_grad()
    def read(self, images: Sequence[Image.Image] | Tensor, batch: int = 64) -> list[list[Found]]:
        """The objects of every image, surest first. Takes PIL images or a uint8 tensor [N, 3, H, W] or [N, H, W, 3].

        Of neighbouring cells that hold an object the surest counts, and of cells two apart where they read the same.
        Raises ValueError for any other tensor.
        """
        device = self.model.head.weight.device
        logits = torch.cat([self.model(part.to(device)).float().cpu() for part in image_pixels(images).split(batch)])
        presence = logits[:, 0].sigmoid()
        color = logits[:, 1 : 1 + len(COLORS)].argmax(1)
        shape = logits[:, 1 + len(COLORS) :].argmax(1)
        sure: list[list[tuple[float, Found]]] = [[] for _ in logits]
        for image, row, column in torch.nonzero(presence > self.model.size.threshold).tolist():
            here = (image, row, column)
            one = Found(SHAPES[int(shape[here])], tuple(COLORS)[int(color[here])], row, column)
            sure[image].append((float(presence[here]), one))
        return [_apart([one for _, one in sorted(row, key=lambda pair: -pair[0])]) for row in sure]

    def agreement(self, images: Sequence[Image.Image] | Tensor, asked: Sequence[Picture | str]) -> float:
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


def _apart(found: list[Found]) -> list[Found]:
    kept: list[Found] = []
    for one in found:
        gaps = [(max(abs(one.row - it.row), abs(one.column - it.column)), one[:2] == it[:2]) for it in kept]
        if all(gap > (2 if same else 1) for gap, same in gaps):
            kept.append(one)
    return kept


def objects_of(asked: Picture | str) -> list[tuple[str, str]]:
    """The (shape, color) pairs that a picture holds or a prompt names."""
    if isinstance(asked, str):
        return named_objects(asked)
    return [(item.shape, item.color) for item in asked.items]


def save_judge(model: Reader, folder: Path) -> None:
    """Write fp16 safetensors and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().half().contiguous() for name, value in model.state_dict().items()}
    with replacing(folder / "model.safetensors") as partial:
        save_file(tensors, partial)
    write_json_atomic(folder / "config.json", asdict(model.size))


def load_judge(folder: Path) -> ImageJudge:
    """The judge stored in `folder`, fp32 in eval mode.   Raises ValueError for files that are damaged or do not fit."""
    with naming(folder / "config.json"):
        size = from_fields(JudgeSize, read_json(folder / "config.json"))
    return ImageJudge(load_module(lambda: Reader(size), folder / "model.safetensors"))
