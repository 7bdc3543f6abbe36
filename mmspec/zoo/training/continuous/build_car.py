"""Training of the zoo's causal models of continuous tokens: classes in raster order, the target and its drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec.imagegen.continuous.causal.transformer import CausalConfig, CausalTransformer, causal_loss
from mmspec.zoo.architectures.object_detector import ObjectDetector
from mmspec.zoo.files.continuous import read_car, read_kl, write_car
from mmspec.zoo.training.continuous.recipe import LatentRecipe, class_labels, class_recognition, latent_set
from mmspec.zoo.training.loop import autocast
from mmspec.zoo.training.training_sets import ImageLatents
from mmspec.zoo.world.image import CLASSES

NO_CLASS = -1


def car_config(width: int, depth: int, heads: int, head_depth: int, head_width: int) -> CausalConfig:
    """Return a config of 64 tokens of 16 channels and 64 classes, whose head has a scale for every step."""
    return CausalConfig(
        grid=8,
        token_dim=16,
        width=width,
        depth=depth,
        heads=heads,
        class_num=CLASSES,
        head="sde",
        head_depth=head_depth,
        head_width=head_width,
        head_steps=20,
        span=1.0,
    )


def target_recipe(steps: int = 6000) -> LatentRecipe:
    """Ten layers of 128 and a head of eight blocks, 2.6 M parameters."""
    return LatentRecipe("car", car_config(128, 10, 4, 8, 112), steps, copies=2)


def draft_recipe(steps: int = 4000) -> LatentRecipe:
    """A tenth of the target: a layer of 96 and a head of one block."""
    return LatentRecipe("car/draft", car_config(96, 1, 3, 1, 96), steps, lr=2e-3, copies=2)


def train_car(
    recipe: LatentRecipe, latents: ImageLatents, folder: Path, resume: bool = True, device: str = "cpu"
) -> tuple[CausalTransformer, dict[str, float]]:
    def loss(model: CausalTransformer, step: int) -> tuple[Tensor, dict[str, float]]:
        drawn = recipe.draws(step)
        members, tokens = latents.batch(step, recipe.batch)
        labels = class_labels(members)
        labels = labels.masked_fill(recipe.dropped(labels, drawn), NO_CLASS)
        with autocast(device):
            return causal_loss(model, tokens.to(device), labels.to(device), drawn, recipe.copies).mean(), {}

    return recipe.trained(lambda: CausalTransformer(recipe.config), loss, folder, resume, device)


def build(
    out: Path,
    work: Path,
    kl: Path,
    judge: ObjectDetector,
    recipe: LatentRecipe,
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 256,
) -> dict[str, Any]:
    """Train a model in `work/NAME` on latents in `work/latents`, and write fp16 weights with a card."""
    latents = latent_set(read_kl(kl).to(device), work, "classes", recipe.pictures)
    model, figures = train_car(recipe, latents, work / recipe.folder, resume, device)
    write_car(model, out)
    pipe = read_car(out, kl)
    evaluation = class_recognition(lambda labels, seeds: pipe(list(labels), seed=seeds).images, judge, measured)
    return recipe.card(out, pipe.model.transformer, figures, {"evaluation": evaluation}, batch=recipe.batch)
