"""Training of the zoo's MAR on latents of classes and prompts in turn: the target and its drafter."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.imagegen.continuous.mar.adapter import Encode, null_conditions
from mmspec.imagegen.continuous.mar.mar_config import MARConfig
from mmspec.imagegen.continuous.mar.training import masked_loss, sampled_ratio
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.zoo.architectures.caption_encoder import WIDTH
from mmspec.zoo.architectures.object_detector import ObjectDetector
from mmspec.zoo.files.continuous import read_captions, read_kl, read_mar, write_mar
from mmspec.zoo.training.continuous.recipe import (
    KINDS,
    Kind,
    LatentRecipe,
    class_labels,
    class_recognition,
    latent_set,
    prompt_recognition,
    scene_at,
)
from mmspec.zoo.training.loop import autocast
from mmspec.zoo.training.training_sets import ImageLatents
from mmspec.zoo.world.image import CLASSES, IMAGE_SCENE_SIDE, LONGEST, image_prompt

AGAIN: tuple[Kind, ...] = ("classes", "classes", "classes", "prompts")  # after step `LatentRecipe.again`
MOST_WEIGHT = 50.0  # bound of a noise error's weight; without it a small model is slow to use its context


def mar_config(width: int, depth: int, heads: int, head_depth: int, head_width: int) -> MARConfig:
    """Return a config of 64 tokens of 16 channels, 64 classes, and a buffer for the features of a prompt."""
    sides = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in (("embed_dim", width), ("depth", depth), ("num_heads", heads))
    }
    return MARConfig(
        img_size=IMAGE_SCENE_SIDE,
        vae_stride=8,
        vae_embed_dim=16,
        class_num=CLASSES,
        buffer_size=LONGEST,
        caption_dim=WIDTH,
        diffloss_d=head_depth,
        diffloss_w=head_width,
        num_sampling_steps="ddim50",
        **sides,
    )


def target_recipe(steps: int = 18_000, again: int = 8000) -> LatentRecipe:
    """Three layers on each side and a head of six blocks, 3.5 M parameters."""
    return LatentRecipe("mar", mar_config(160, 3, 5, 6, 208), steps, copies=2, again=again)


def draft_recipe(steps: int = 10_000, again: int = 4000) -> LatentRecipe:
    """A ninth of the target, with a head of one block, the slowest part."""
    return LatentRecipe("mar/draft", mar_config(96, 1, 3, 1, 96), steps, lr=2e-3, copies=2, again=again)


def turn(step: int, again: int) -> tuple[Kind, int]:
    """Return the set of a step, and the number of earlier steps on this set. The sets take turns. From step `again` on
    (0 for never), three of four steps are on classes, whose shapes a small model is slow to distinguish."""
    kinds, first = (AGAIN, again) if again and step >= again else (KINDS, 0)
    rounds, place = divmod(step - first, len(kinds))
    kind = kinds[place]
    before = -((KINDS.index(kind) - first) // len(KINDS))
    return kind, before + rounds * kinds.count(kind) + kinds[:place].count(kind)


def condition_of(kind: Kind, members: Tensor, step: int, captions: Encode) -> Tensor:
    """Return int64 [B] of classes, or features float [B, 32, 128] of prompts, which are reworded in every step."""
    if kind == "classes":
        return class_labels(members)
    return captions([image_prompt(scene_at("prompts", index), step) for index in members.tolist()])[0]


@torch.no_grad()
def new_model(recipe: LatentRecipe) -> MAR:
    """Return a model whose initial tables distinguish places and classes; the published initialisation (deviation 0.02,
    beside tokens of 0.4) costs a small model thousands of steps."""
    model = MAR(recipe.config)
    for table in (model.encoder_pos_embed_learned, model.decoder_pos_embed_learned):
        table.normal_(std=0.5)
        table[0, recipe.config.buffer_size :] = places(recipe.config.grid, table.shape[-1])
    for table in (model.class_emb.weight, model.fake_latent):
        table.normal_(std=0.5)
    return model


def places(grid: int, width: int) -> Tensor:
    """Return float32 [grid^2, width]: sines and cosines of row and column, with waves of four cells to four grids."""
    waves = torch.linspace(math.log(4), math.log(4 * grid), width // 4).exp()
    angle = 2 * torch.pi * torch.arange(grid)[:, None] / waves
    line = torch.cat((angle.sin(), angle.cos()), -1)
    both = torch.cat((line[:, None].expand(-1, grid, -1), line[None].expand(grid, -1, -1)), -1).flatten(0, 1)
    return torch.nn.functional.pad(both, (0, width - both.shape[-1]))


def train_mar(
    recipe: LatentRecipe,
    latents: dict[str, ImageLatents],
    captions: Encode,
    folder: Path,
    resume: bool = True,
    device: str = "cpu",
) -> tuple[MAR, dict[str, float]]:
    """Train a model on the sets "classes" and "prompts"; see `turn`."""

    def loss(model: MAR, step: int) -> tuple[Tensor, dict[str, float]]:
        kind, number = turn(step, recipe.again)
        drawn = recipe.draws(step)
        members, tokens = latents[kind].batch(number, recipe.batch)
        labels = condition_of(kind, members, step, captions)
        drop = recipe.dropped(labels, drawn).view(-1, *(1,) * (labels.dim() - 1))
        labels = torch.where(drop, null_conditions(labels), labels)
        with autocast(device):
            each = masked_loss(
                model, tokens.to(device), labels.to(device), drawn, recipe.copies, sampled_ratio, MOST_WEIGHT
            )
        noise, variance = each.noise.mean(), each.variance.mean()
        return noise + variance, {"noise": float(noise.detach()), "variance": float(variance.detach())}

    return recipe.trained(lambda: new_model(recipe), loss, folder, resume, device)


def build(
    out: Path,
    work: Path,
    kl: Path,
    whole: Path,
    judge: ObjectDetector,
    recipe: LatentRecipe,
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 256,
) -> dict[str, Any]:
    """Train a model in `work/NAME` on latents in `work/latents`, and write fp16 weights with a card."""
    vae = read_kl(kl).to(device)
    latents = {kind: latent_set(vae, work, kind, recipe.pictures) for kind in KINDS}
    model, figures = train_mar(recipe, latents, read_captions(whole), work / recipe.folder, resume, device)
    write_mar(model, out)
    pipe = read_mar(out, kl, whole)
    evaluation = {}
    for kind, recognition in (("classes", class_recognition), ("prompts", prompt_recognition)):
        shares = recognition(lambda prompts, seeds: pipe(list(prompts), seed=seeds).images, judge, measured)
        evaluation |= {f"{kind}_{name}": value for name, value in shares.items()}
    return recipe.card(out, pipe.model.transformer, figures, {"evaluation": evaluation}, batch=recipe.batch)
