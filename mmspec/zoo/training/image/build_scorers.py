"""Build the models that score images: CLIP on images and their prompts, and the object detector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from torch import Tensor, nn

from mmspec.zoo.architectures.clip import ClipSize, ImageClip, new_clip, token_ids
from mmspec.zoo.architectures.object_detector import CELL, GRID, DetectorNetwork, ObjectDetector, objects_of
from mmspec.zoo.files.sized import load_clip, load_detector, save_sized
from mmspec.zoo.training.image.recipe import DAMAGED, ImageRecipe
from mmspec.zoo.training.loop import autocast
from mmspec.zoo.world.image import HELD_OUT, ImageScene, image_prompt
from mmspec.zoo.world.pixels import augment, image_arrays, sample_image_scenes, to_pixels
from mmspec.zoo.world.scene import COLORS

CLIP_RECIPE = ImageRecipe(
    "clip",
    steps=800,
    lr=2e-3,
    batch=128,
    warmup=80,
    weight_decay=0.05,
    first=1 << 28,
    data=f"pictures and prompts of mmspec.zoo.world, {DAMAGED}",
)
NORM_BATCHES = 16  # batches for the statistics of the norms after training


def training_pixels(pictures: list[ImageScene], seed: int) -> Tensor:
    """Return float32 [B, 3, 64, 64] in -1..1; every other picture is augmented."""
    pixels = to_pixels(image_arrays(pictures))
    pixels[::2] = augment(pixels[::2], seed)
    return pixels


def contrasted_pairs(pictures: list[ImageScene], prompts: list[str]) -> Tensor:
    """Return bool [B, B]: the pairs of a batch to contrast. Pairs with the same prompt and objects are excluded."""
    names = [
        (prompt, tuple(item.label for item in picture.items)) for prompt, picture in zip(prompts, pictures, strict=True)
    ]
    codes = torch.tensor([names.index(name) for name in names])
    return (codes[:, None] != codes) | torch.eye(len(names), dtype=torch.bool)


def clip_loss(clip: CLIP, pictures: list[ImageScene], seed: int, device: str) -> tuple[Tensor, dict[str, float]]:
    """Return the symmetric contrastive loss of a batch, and the share of pictures whose own prompt is nearest."""
    prompts = [image_prompt(picture, seed) for picture in pictures]
    with autocast(device):
        image = clip.encode_image(training_pixels(pictures, seed).to(device))
        text = clip.encode_text(token_ids(prompts).to(device))
    cosine = F.normalize(image.float(), dim=-1) @ F.normalize(text.float(), dim=-1).T
    scores = cosine * clip.logit_scale.clamp(max=4.6).exp()
    scores = scores.masked_fill(~contrasted_pairs(pictures, prompts).to(device), -1e4)
    wanted = torch.arange(len(pictures), device=device)
    loss = (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2
    return loss, {"top1": float((scores.argmax(-1) == wanted).float().mean())}


def train_clip(
    clip: CLIP, folder: Path, recipe: ImageRecipe = CLIP_RECIPE, resume: bool = True, device: str = "cpu"
) -> dict[str, float]:
    """Train CLIP in place, with state and log in `folder`; return the means of the last logged steps."""
    if recipe.batch < 2:
        raise ValueError(f"batch: expected at least two pictures to tell apart, got {recipe.batch}; raise it")

    def loss(pictures: list[ImageScene], step: int) -> tuple[Tensor, dict[str, float]]:
        return clip_loss(clip, pictures, step, device)

    figures = recipe.train_on_images(clip, loss, folder, resume, device)
    recompute_norm_statistics(clip, recipe, device)
    return figures


@torch.no_grad()
def recompute_norm_statistics(clip: CLIP, recipe: ImageRecipe, device: str) -> None:
    """Recompute the statistics of the batch norms from the parameters alone, since checkpoints do not hold them."""
    norms = [module for module in clip.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
    clip.train()
    for step in range(NORM_BATCHES):
        clip.encode_image(training_pixels(recipe.pictures(step), step).to(device))
    clip.eval()


@torch.no_grad()
def evaluate_clip(clip: ImageClip, batches: int = 30, batch: int = 32) -> dict[str, float]:
    """Return top-1 retrieval among `batch` held-out prompts and pictures, both ways, and the mean cosine of true pairs."""
    right_text = right_image = cosine = 0.0
    for index in range(batches):
        pictures = sample_image_scenes(HELD_OUT + index * batch, batch)
        prompts = [image_prompt(picture, index) for picture in pictures]
        image = clip.encode_images(torch.from_numpy(image_arrays(pictures)))
        scores = image @ clip.encode_texts(prompts).T
        wanted = torch.arange(batch, device=scores.device)
        right_text += float((scores.argmax(-1) == wanted).float().mean())
        right_image += float((scores.argmax(0) == wanted).float().mean())
        cosine += float(scores.diagonal().mean())
    return {"text_top1": right_text / batches, "image_top1": right_image / batches, "cosine": cosine / batches}


def build_clip(
    out: Path,
    work: Path,
    recipe: ImageRecipe = CLIP_RECIPE,
    *,
    size: ClipSize | None = None,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 30,
) -> dict[str, Any]:
    """Train CLIP in `work/clip`, and write fp16 weights with a card of `measured` batches of 32 held-out pictures."""
    size = size or ClipSize()
    clip = new_clip(size, recipe.seed)
    figures = train_clip(clip, work / "clip", recipe, resume, device)
    save_sized(clip, size, out)
    return recipe.card(out, clip, figures, {"evaluation": evaluate_clip(load_clip(out), measured)}, batch=recipe.batch)


# seeds apart from those of every other training
DETECTOR_RECIPE = ImageRecipe("image_judge", steps=1000, lr=3e-3, batch=64, first=3 << 29, seed=1)
IGNORED_CELL = -100


def cell_labels(pictures: list[ImageScene]) -> tuple[Tensor, Tensor, Tensor]:
    """Return presence float32 [B, 8, 8], 1 at a center, -1 around it (no loss), 0 elsewhere; and color and shape int64
    [B, 8, 8], set at a center and its neighbours, IGNORED_CELL elsewhere."""
    presence = np.zeros((len(pictures), GRID, GRID), dtype=np.float32)
    color = np.full(presence.shape, IGNORED_CELL, dtype=np.int64)
    shape = color.copy()
    for index, picture in enumerate(pictures):
        for item in picture.items:
            row, column = (min(GRID - 1, int((at + item.pixels / 2) / CELL)) for at in (item.y, item.x))
            around = (index, slice(max(row - 1, 0), row + 2), slice(max(column - 1, 0), column + 2))
            presence[around] = -1
            presence[index, row, column] = 1
            color[around], shape[around] = item.label % len(COLORS), item.label // len(COLORS)
    return torch.from_numpy(presence), torch.from_numpy(color), torch.from_numpy(shape)


def detector_loss(logits: Tensor, pictures: list[ImageScene]) -> tuple[Tensor, dict[str, float]]:
    """Return the cross-entropies of presence, color and shape, and the accuracies of color and shape."""
    presence, color, shape = (label.to(logits.device) for label in cell_labels(pictures))
    here = F.binary_cross_entropy_with_logits(logits[:, 0], presence.clamp(min=0), reduction="none")
    judged = (presence >= 0).float()
    weight = judged * (1 + 9 * (presence == 1))  # one or two cells of 64 hold a center
    total = (here * weight).sum() / weight.sum()
    notes = {"presence": float(total.detach())}
    parts = {"color": (logits[:, 1 : 1 + len(COLORS)], color), "shape": (logits[:, 1 + len(COLORS) :], shape)}
    for name, (scores, wanted) in parts.items():
        total = total + F.cross_entropy(scores, wanted, ignore_index=IGNORED_CELL)
        notes[name] = float((scores.argmax(1) == wanted)[presence == 1].float().mean())
    return total, notes


def train_detector(
    model: DetectorNetwork,
    folder: Path,
    recipe: ImageRecipe = DETECTOR_RECIPE,
    resume: bool = True,
    device: str = "cpu",
) -> dict[str, float]:
    """Train a detector in place on augmented pictures, with state and log in `folder`."""

    def loss(pictures: list[ImageScene], step: int) -> tuple[Tensor, dict[str, float]]:
        pixels = augment(to_pixels(image_arrays(pictures)), recipe.seed * 1_000_003 + step)
        with autocast(device):
            logits = model(pixels.to(device))
        return detector_loss(logits.float(), pictures)

    return recipe.train_on_images(model, loss, folder, resume, device)


def evaluate_detector(judge: ObjectDetector, count: int = 1000) -> dict[str, float]:
    """Return the share of held-out objects with the right color and shape, the share of true readings, and readings per
    object."""
    pictures = sample_image_scenes(HELD_OUT + (1 << 16), count)
    images = torch.from_numpy(image_arrays(pictures))
    rows, agreement = judge.read(images), judge.agreement(images, pictures)
    readings = sum(len(row) for row in rows)
    objects = sum(len(picture.items) for picture in pictures)
    known = sum(
        (item.shape, item.color) in objects_of(p) for p, row in zip(pictures, rows, strict=True) for item in row
    )
    return {
        "objects_right": agreement,
        "readings_right": known / max(readings, 1),
        "readings_per_object": readings / objects,
    }


def build_detector(
    out: Path,
    work: Path,
    recipe: ImageRecipe = DETECTOR_RECIPE,
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 1000,
) -> dict[str, Any]:
    """Train the detector in `work/image_judge`, and write fp16 weights with a card."""
    torch.manual_seed(recipe.seed)
    model = DetectorNetwork()
    figures = train_detector(model, work / "image_judge", recipe, resume, device)
    save_sized(model, model.size, out)
    evaluation = evaluate_detector(load_detector(out), measured)
    return recipe.card(out, model, figures, {"evaluation": evaluation}, batch=recipe.batch)
