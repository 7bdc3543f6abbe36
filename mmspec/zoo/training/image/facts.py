"""Facts of an image scene as labels, losses of the heads that read them, and the training of the prompt encoder on them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.zoo.architectures.caption_encoder import OWN_HEADS, FactReader, new_encoder
from mmspec.zoo.training.objectives import (
    IGNORED_LABEL,
    PROMPT_SEED,
    Lesson,
    LossAndFigures,
    WithAuxiliaryHeads,
    token_loss,
    train_reader,
)
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
from mmspec.zoo.world.scene import BACKDROPS, COLORS, SHAPES, TONES

POSITIONS = 16  # of each row that are asked for the whole picture, drawn anew every step


def image_facts(pictures: list[ImageScene]) -> dict[str, Tensor]:
    """What is on each picture: "pairs" float [B, 64]; color, shape, size int64 [B, 9] by place, the last index for
    nothing there; tone and backdrop int64 [B]."""
    count = len(pictures)
    found = {"pairs": torch.zeros(count, CLASSES), "color": torch.full((count, 9), len(COLORS)),
             "shape": torch.full((count, 9), len(SHAPES)), "size": torch.full((count, 9), 2)}  # fmt: skip
    for row, picture in enumerate(pictures):
        for item in picture.items:
            place = PLACES.index(item.place)
            found["pairs"][row, item.label] = 1
            found["color"][row, place] = tuple(COLORS).index(item.color)
            found["shape"][row, place] = SHAPES.index(item.shape)
            found["size"][row, place] = ("small", "large").index(item.size)
    found["tone"] = torch.tensor([tuple(TONES).index(p.background.tone) for p in pictures])
    found["backdrop"] = torch.tensor([BACKDROPS.index(p.background.texture) for p in pictures])
    return found


def image_token_facts(ids: Tensor, pictures: list[ImageScene], tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """int64 [B, S] per fact: that of the object a shape's word names, IGNORED_LABEL at all other tokens."""
    shapes = dict(zip(tokenizer.convert_tokens_to_ids(list(SHAPES)), SHAPES, strict=True))
    colors = dict(zip(tokenizer.convert_tokens_to_ids(list(COLORS)), COLORS, strict=True))
    found = {name: torch.full_like(ids, IGNORED_LABEL) for name in OWN_HEADS}
    for row, (line, picture) in enumerate(zip(ids.tolist(), pictures, strict=True)):
        items = {(item.shape, item.color): item for item in picture.items}
        for at, (before, word) in enumerate(zip(line, line[1:], strict=False), 1):
            item = items.get((shapes.get(word), colors.get(before)))
            if item is not None:
                found["color"][row, at] = tuple(COLORS).index(item.color)
                found["place"][row, at] = PLACES.index(item.place)
                found["size"][row, at] = ("small", "large").index(item.size)
    return found


def image_fact_loss(logits: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Sum of the heads' cross-entropies, and how often both objects of a picture are read right."""
    loss = F.binary_cross_entropy_with_logits(logits["pairs"], wanted["pairs"]) * CLASSES
    for name in ("color", "shape", "size"):
        target = wanted[name]
        loss = loss + F.cross_entropy(logits[name].view(*target.shape, -1).flatten(0, 1), target.flatten())
    for name in ("tone", "backdrop"):
        loss = loss + 0.3 * F.cross_entropy(logits[name], wanted[name])
    right = ((logits["pairs"] > 0) == (wanted["pairs"] > 0)).all(-1)
    return loss, {"pairs": float(right.float().mean())}


def image_reading_loss(
    model: WithAuxiliaryHeads, states: Tensor, pictures: list[ImageScene], drop: Tensor, step: int
) -> Tensor:
    """How badly the facts of each picture are read from some of its positions, and from all positions of an object which
    one it is; rows without a prompt do not count.   states: as the model gives them.   drop: bool [B]."""
    rows, device = (~drop).nonzero()[:, 0], states.device
    place = torch.randint(states.shape[1], (len(rows), POSITIONS), generator=torch.Generator().manual_seed(step))
    logits = model.read_picture(states[rows.to(device)[:, None], place.to(device)].flatten(0, 1))
    wanted = {name: value[rows].repeat_interleave(POSITIONS, 0) for name, value in image_facts(pictures).items()}
    whole = image_fact_loss(logits, {name: value.to(device) for name, value in wanted.items()})[0]
    labels = code_labels(pictures, int(states.shape[1] ** 0.5)).masked_fill(drop[:, None], CLASSES)
    row, cell = (labels < CLASSES).nonzero(as_tuple=True)
    seen = model.read_object(states[row.to(device), cell.to(device)])
    return whole + F.cross_entropy(seen, labels[row, cell].to(device))


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
    """Trains on prompts of pictures that are never rendered.   dim: of the transformer that will read the captions."""
    tokenizer = image_prompt_tokenizer()

    def lesson(step: int) -> Lesson:
        pictures = [sample_image_scene(PROMPT_SEED + step * batch + i) for i in range(batch)]

        def judge(ids: Tensor, whole: dict[str, Tensor], own: dict[str, Tensor]) -> LossAndFigures:
            loss, notes = image_fact_loss(whole, image_facts(pictures))
            return loss + token_loss(own, image_token_facts(ids, pictures, tokenizer)), notes

        return [image_prompt(picture, step) for picture in pictures], judge

    return train_reader(FactReader(new_encoder(tokenizer), dim), tokenizer, LONGEST, lesson, folder, steps, resume)
