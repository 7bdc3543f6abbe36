"""Training of the zoo's CLIP on pictures and their prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from torch import Tensor, nn

from ..architectures.clip import ClipSize, PictureClip, new_clip, token_ids
from ..architectures.pixels import to_pixels
from ..files.cards import write_card
from ..files.scorers import load_clip, save_clip
from ..world.pictures import HELD_OUT, Picture
from ..world.prompts import prompt_of
from .loop import Plan, train
from .picture_batches import damaged, picture_arrays, sample_pictures

FIRST_SEED = 1 << 28
SETTLE = 16  # batches that the norms' statistics are taken over after training


@dataclass(frozen=True, slots=True)
class ClipRecipe:
    """Everything that decides the training; the defaults are the shipped model's."""

    steps: int = 800
    lr: float = 2e-3
    batch: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 2:
            raise ValueError(f"ClipRecipe: expected steps >= 1 and batch >= 2, got {self}; change them")


def training_pixels(pictures: list[Picture], seed: int) -> Tensor:
    """float32 [B, 3, 64, 64] in -1..1, every other picture damaged."""
    pixels = to_pixels(picture_arrays(pictures))
    pixels[::2] = damaged(pixels[::2], seed)
    return pixels


def told_apart(pictures: list[Picture], prompts: list[str]) -> Tensor:
    """Which pairs of a batch are contrasted, bool [B, B]: not those of two rows with the same prompt and objects."""
    names = [
        (prompt, tuple(item.label for item in picture.items)) for prompt, picture in zip(prompts, pictures, strict=True)
    ]
    codes = torch.tensor([names.index(name) for name in names])
    return (codes[:, None] != codes) | torch.eye(len(names), dtype=torch.bool)


def clip_loss(clip: CLIP, pictures: list[Picture], seed: int, device: str) -> tuple[Tensor, dict[str, float]]:
    """Symmetric contrast over the batch, and how often a picture's own prompt is nearest."""
    prompts = [prompt_of(picture, seed) for picture in pictures]
    with torch.autocast(device, torch.bfloat16):
        image = clip.encode_image(training_pixels(pictures, seed).to(device))
        text = clip.encode_text(token_ids(prompts).to(device))
    cosine = F.normalize(image.float(), dim=-1) @ F.normalize(text.float(), dim=-1).T
    scores = cosine * clip.logit_scale.clamp(max=4.6).exp()
    scores = scores.masked_fill(~told_apart(pictures, prompts).to(device), -1e4)
    wanted = torch.arange(len(pictures), device=device)
    loss = (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2
    return loss, {"top1": float((scores.argmax(-1) == wanted).float().mean())}


def train_clip(
    clip: CLIP, folder: Path, recipe: ClipRecipe = ClipRecipe(), resume: bool = True, device: str = "cpu"
) -> dict[str, float]:
    """Train `clip` in place (bf16 autocast); returns the last means. State and log lie in `folder`."""
    clip.to(device).train()

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        return clip_loss(clip, sample_pictures(FIRST_SEED + step * recipe.batch, recipe.batch), step, device)

    plan = Plan(recipe.steps, recipe.lr, warmup=min(80, recipe.steps // 2), weight_decay=0.05)
    figures = train(clip, loss_of, plan, folder, "clip", resume)
    settle_norms(clip, recipe, device)
    return figures


@torch.no_grad()
def settle_norms(clip: CLIP, recipe: ClipRecipe, device: str) -> None:
    """Take the batch norms' statistics afresh, as a function of the parameters alone: checkpoints do not hold them."""
    norms = [module for module in clip.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
    clip.train()
    for step in range(SETTLE):
        pictures = sample_pictures(FIRST_SEED + step * recipe.batch, recipe.batch)
        clip.encode_image(training_pixels(pictures, step).to(device))
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
    recipe: ClipRecipe = ClipRecipe(),
    resume: bool = True,
    device: str = "cpu",
    size: ClipSize | None = None,
    measured: int = 30,
) -> dict[str, Any]:
    """Train in `work/clip`, write fp16 weights and the card to `out`; returns the card.

    size: of the model, `ClipSize()` unless given.   measured: batches of 32 held-out pictures the card's figures are of.
    """
    size = size or ClipSize()
    clip = new_clip(size, recipe.seed)
    figures = train_clip(clip, work / "clip", recipe, resume, device)
    save_clip(clip, size, out)
    card = {
        "name": "clip",
        "class": "open_clip.model.CLIP",
        "licence": "Apache-2.0",
        "parameters": sum(p.numel() for p in clip.parameters()),
        "data": "pictures and prompts of mmspec.zoo.world, damaged by noise, blur, shifts and brightness",
        "picture_seeds": [FIRST_SEED, FIRST_SEED + recipe.steps * recipe.batch],
        "model_seed": recipe.seed,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "training": {key: round(value, 4) for key, value in figures.items()},
        "evaluation": evaluate_clip(load_clip(out), measured),
        "command": "mmspec zoo build clip",
    }
    write_card(out, card)
    return card
