"""Training of the zoo's judge: where objects have their centers, and which color and shape they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...architectures.judge import CELL, GRID, ImageJudge, Reader, objects_of
from ...architectures.pixels import to_pixels
from ...files.cards import rounded, write_card
from ...files.scorers import load_judge, save_judge
from ...world.pictures import HELD_OUT, Picture
from ...world.words import COLORS
from ..precision import quick
from .on_pictures import PictureRecipe, train_on_pictures
from .picture_batches import augmented, picture_arrays, sample_pictures

# pictures far from those of every other training
SHIPPED = PictureRecipe(steps=1000, lr=3e-3, batch=64, warmup=100, weight_decay=0.02, first=3 << 29, seed=1)
IGNORE = -100


def cell_labels(pictures: list[Picture]) -> tuple[Tensor, Tensor, Tensor]:
    """Presence float [B, 8, 8] (1 at a center, -1 around it: not judged, 0 elsewhere), color and shape int64 [B, 8, 8].

    Color and shape are asked for at a center and its neighbours.
    """
    presence = np.zeros((len(pictures), GRID, GRID), dtype=np.float32)
    color = np.full(presence.shape, IGNORE, dtype=np.int64)
    shape = color.copy()
    for index, picture in enumerate(pictures):
        for item in picture.items:
            row, column = (min(GRID - 1, int((at + item.pixels / 2) / CELL)) for at in (item.y, item.x))
            around = (index, slice(max(row - 1, 0), row + 2), slice(max(column - 1, 0), column + 2))
            presence[around] = -1
            presence[index, row, column] = 1
            color[around], shape[around] = item.label % len(COLORS), item.label // len(COLORS)
    return torch.from_numpy(presence), torch.from_numpy(color), torch.from_numpy(shape)


def judge_loss(logits: Tensor, pictures: list[Picture]) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropies of presence, color and shape, and the accuracies of the last two."""
    presence, color, shape = (label.to(logits.device) for label in cell_labels(pictures))
    here = F.binary_cross_entropy_with_logits(logits[:, 0], presence.clamp(min=0), reduction="none")
    judged = (presence >= 0).float()
    weight = judged * (1 + 9 * (presence == 1))  # one or two cells of 64 hold a center
    total = (here * weight).sum() / weight.sum()
    notes = {"presence": float(total.detach())}
    parts = {"color": (logits[:, 1 : 1 + len(COLORS)], color), "shape": (logits[:, 1 + len(COLORS) :], shape)}
    for name, (scores, wanted) in parts.items():
        total = total + F.cross_entropy(scores, wanted, ignore_index=IGNORE)
        notes[name] = float((scores.argmax(1) == wanted)[presence == 1].float().mean())
    return total, notes


def train_judge(
    model: Reader, folder: Path, recipe: PictureRecipe = SHIPPED, resume: bool = True, device: str = "cpu"
) -> dict[str, float]:
    """Train `model` in place on augmented pictures; returns the last means. State and log lie in `folder`."""

    def loss(pictures: list[Picture], step: int) -> tuple[Tensor, dict[str, float]]:
        pixels = augmented(to_pixels(picture_arrays(pictures)), recipe.seed * 1_000_003 + step)
        with quick(device):
            logits = model(pixels.to(device))
        return judge_loss(logits.float(), pictures)

    return train_on_pictures(model, loss, recipe, folder, "judge", resume, device)


def evaluate_judge(judge: ImageJudge, count: int = 1000) -> dict[str, float]:
    """On held-out pictures: objects read with the right color and shape, and readings that are no object of the picture."""
    pictures = sample_pictures(HELD_OUT + (1 << 16), count)
    images = torch.from_numpy(picture_arrays(pictures))
    found, agreement = judge.read(images), judge.agreement(images, pictures)
    readings = sum(len(row) for row in found)
    objects = sum(len(picture.items) for picture in pictures)
    known = sum((one.shape, one.color) in objects_of(p) for p, row in zip(pictures, found, strict=True) for one in row)
    return {
        "objects_right": round(agreement, 4),
        "readings_right": round(known / max(readings, 1), 4),
        "readings_per_object": round(readings / objects, 4),
    }


def build(
    out: Path,
    work: Path,
    recipe: PictureRecipe = SHIPPED,
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 1000,
) -> dict[str, Any]:
    """Train in `work/image_judge`, write fp16 weights and the card to `out`; returns the card.

    measured: held-out pictures the card's figures are of.
    """
    torch.manual_seed(recipe.seed)
    model = Reader()
    figures = train_judge(model, work / "image_judge", recipe, resume, device)
    save_judge(model, out)
    data = "pictures of mmspec.zoo.world, damaged by noise, blur, shifts and brightness"
    evaluation = evaluate_judge(load_judge(out), measured)
    return write_card(
        out, "image_judge", model, data, **recipe.facts(), training=rounded(figures), evaluation=evaluation
    )
