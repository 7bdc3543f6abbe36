"""Training of the zoo's CLIP on pictures and their prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from torch import Tensor, nn

from ...architectures.clip import ClipSize, PictureClip, new_clip, token_ids
from ...architectures.pixels import to_pixels
from ...files.cards import rounded, write_card
from ...files.scorers import load_clip, save_clip
from ...world.pictures import HELD_OUT, Picture
from ...world.prompts import prompt_of
from ..precision import quick
from .on_pictures import PictureRecipe, train_on_pictures
from .picture_batches import augmented, picture_arrays, sample_pictures

SHIPPED = PictureRecipe(steps=800, lr=2e-3, batch=128, warmup=80, weight_decay=0.05, first=1 << 28)
NORM_BATCHES = 16  # batches that the norms' statistics are taken over after training


def training_pixels(pictures: list[Picture], seed: int) -> Tensor:
    """float32 [B, 3, 64, 64] in -1..1, every other picture augmented."""
    pixels = to_pixels(picture_arrays(pictures))
    pixels[::2] = augmented(pixels[::2], seed)
    return pixels


def contrasted_pairs(pictures: list[Picture], prompts: list[str]) -> Tensor:
    """Which pairs of a batch are contrasted, bool [B, B]: not those of two rows with the same prompt and objects."""
    names = [
        (prompt, tuple(item.label for item in picture.items)) for prompt, picture in zip(prompts, pictures, strict=True)
    ]
    codes = torch.tensor([names.index(name) for name in names])
    return (codes[:, None] != codes) | torch.eye(len(names), dtype=torch.bool)


def clip_loss(clip: CLIP, pictures: list[Picture], seed: int, device: str) -> tuple[Tensor, dict[str, float]]:
    """Symmetric contrast over the batch, and how often a picture's own prompt is nearest."""
    prompts = [prompt_of(picture, seed) for picture in pictures]
    with quick(device):
        image = clip.encode_image(training_pixels(pictures, seed).to(device))
        text = clip.encode_text(token_ids(prompts).to(device))
    cosine = F.normalize(image.float(), dim=-1) @ F.normalize(text.float(), dim=-1).T
    scores = cosine * clip.logit_scale.clamp(max=4.6).exp()
    scores = scores.masked_fill(~contrasted_pairs(pictures, prompts).to(device), -1e4)
    wanted = torch.arange(len(pictures), device=device)
    loss = (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2
    return loss, {"top1": float((scores.argmax(-1) == wanted).float().mean())}


def train_clip(
    clip: CLIP, folder: Path, recipe: PictureRecipe = SHIPPED, resume: bool = True, device: str = "cpu"
) -> dict[str, float]:
    """Train `clip` in place; returns the last means. State and log lie in `folder`.

    Raises ValueError for batches of one picture, which there is nothing to tell from.
    """
    if recipe.batch < 2:
        raise ValueError(f"batch: expected at least two pictures to tell apart, got {recipe.batch}; raise it")

    def loss(pictures: list[Picture], step: int) -> tuple[Tensor, dict[str, float]]:
        return clip_loss(clip, pictures, step, device)

    figures = train_on_pictures(clip, loss, recipe, folder, "clip", resume, device)
    recompute_norm_statistics(clip, recipe, device)
    return figures


@torch.no_grad()
def recompute_norm_statistics(clip: CLIP, recipe: PictureRecipe, device: str) -> None:
    """Take the batch norms' statistics afresh, as a function of the parameters alone: checkpoints do not hold them."""
    norms = [module for module in clip.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
    clip.train()
    for step in range(NORM_BATCHES):
        clip.encode_image(training_pixels(recipe.pictures(step), step).to(device))
    clip.eval()


@torch.no_grad()
def evaluate_clip(clip: PictureClip, batches: int = 30, batch: int = 32) -> dict[str, float]:
    """Top-1 retrieval among `batch` held-out prompts and pictures, both ways, and the mean cosine of a true pair."""
    right_text = right_image = cosine = 0.0
    for index in range(batches):
        pictures = sample_pictures(HELD_OUT + index * batch, batch)
        prompts = [prompt_of(picture, index) for picture in pictures]
        image = clip.encode_images(torch.from_numpy(picture_arrays(pictures)))
        scores = image @ clip.encode_texts(prompts).T
        wanted = torch.arange(batch, device=scores.device)
        right_text += float((scores.argmax(-1) == wanted).float().mean())
        right_image += float((scores.argmax(0) == wanted).float().mean())
        cosine += float(scores.diagonal().mean())
    figures = {"text_top1": right_text, "image_top1": right_image, "cosine": cosine}
    return {name: round(value / batches, 4) for name, value in figures.items()}


def build(
    out: Path,
    work: Path,
    recipe: PictureRecipe = SHIPPED,
    *,
    size: ClipSize | None = None,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 30,
) -> dict[str, Any]:
    """Train in `work/clip`, write fp16 weights and the card to `out`; returns the card.

    size: of the model, `ClipSize()` unless given.   measured: batches of 32 held-out pictures the card's figures are of.
    """
    size = size or ClipSize()
    clip = new_clip(size, recipe.seed)
    figures = train_clip(clip, work / "clip", recipe, resume, device)
    save_clip(clip, size, out)
    data = "pictures and prompts of mmspec.zoo.world, damaged by noise, blur, shifts and brightness"
    evaluation = evaluate_clip(load_clip(out), measured)
    return write_card(out, "clip", clip, data, **recipe.facts(), training=rounded(figures), evaluation=evaluation)
