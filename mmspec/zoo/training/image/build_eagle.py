"""Build the zoo's image drafter: trained on images of the target itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.core.drafting.shapes import Chain, Shape, StaticTree
from mmspec.core.length import FixedLength
from mmspec.imagegen.eagle.drafter import ImageEagle, deep_tree
from mmspec.imagegen.eagle.training import EagleLoss, image_eagle_loss
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.zoo.files.image import GUIDANCE
from mmspec.zoo.training.loop import ZooRecipe, rounded, write_card
from mmspec.zoo.training.training_sets import Tensors, batch_members, cached_set, fingerprint
from mmspec.zoo.world.image import HELD_OUT, image_prompt, sample_image_scene

CODES_SEED = (1 << 29) + (1 << 27)  # apart from the pictures the models themselves are trained and measured on
CHUNK = 64  # images that are drawn at once
MEASURED: dict[str, Shape] = {"chain5": Chain(FixedLength(5)), "tree24": StaticTree(deep_tree(24))}


@dataclass(frozen=True, slots=True)
class ImageEagleRecipe(ZooRecipe):
    """Everything that decides the drafter; the defaults are the shipped one.

    Beside LANTERN's training, laws weigh as much as features, three steps are unrolled on the drafter's own states, and half
    of the words are compared after guidance at the scale images are made with: both branches count as much.
    images: made by the target itself.
    """

    name, warmup, weight_decay = "t2i/eagle", 50, 0.01
    images: int = 2048
    steps: int = 1500
    batch: int = 8
    lr: float = 1e-3
    heads: int = 6
    loss: EagleLoss = field(
        default_factory=lambda: EagleLoss(
            words=1.0, depths=3, decay=0.9, noise=0.05, unconditional=0.5, guided_share=0.5, guidance=GUIDANCE
        )
    )
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ImageCodes:
    """codes: int64 [N, T], raster order.   prompts: of each image."""

    codes: Tensor
    prompts: list[str]

    def batch(self, step: int, size: int) -> tuple[list[str], Tensor]:
        """Prompts and codes of a training step, a pure function of it."""
        taken = batch_members(len(self.prompts), size, step)
        return [self.prompts[i] for i in taken], self.codes[taken]


def generated_codes(pipe: ImagePipeline, work: Path, count: int) -> ImageCodes:
    """Codes of the first `count` images of the pipeline itself, sampled with its guidance and every fourth time with none;
    stored in `work/t2i_codes`."""
    prompts = [image_prompt(sample_image_scene(seed), seed) for seed in range(CODES_SEED, CODES_SEED + count)]

    def make(first: int, size: int) -> Tensors:
        scale = 1.0 if first // CHUNK % 4 == 3 else pipe.guidance_scale
        seeds = [(CODES_SEED + first + i) & (2**31 - 1) for i in range(size)]
        images = pipe(prompts[first : first + size], guidance_scale=scale, seed=seeds, pixels=False)
        return {"codes": images.tokens.to(torch.int32)}

    mark = fingerprint(pipe.model.transformer, pipe.guidance_scale)
    made = cached_set("images of the target", work / "t2i_codes", "codes", mark, count, make, chunk=CHUNK, batch=CHUNK)
    return ImageCodes(made["codes"].long(), prompts)


def train_image_eagle(
    recipe: ImageEagleRecipe, pipe: ImagePipeline, codes: ImageCodes, folder: Path, resume: bool = True
) -> tuple[ImageEagle, dict[str, float]]:
    """The trained drafter and the last mean loss and overlaps. The state and the log lie in `folder`."""
    torch.manual_seed(recipe.seed)
    model = pipe.model
    drafter = ImageEagle(ImageEagle.sizes_for(model, recipe.heads)).to(model.device)

    def batches(step: int) -> tuple[object, Tensor]:
        prompts, values = codes.batch(step, recipe.batch)
        return model.prepare(prompts), values

    loss = image_eagle_loss(drafter, model, batches, recipe.loss, recipe.seed)
    figures = recipe.train(drafter, loss, folder, resume)
    return drafter.eval().requires_grad_(False), figures


def measure(pipe: ImagePipeline, drafter: ImageEagle, count: int = 16) -> dict[str, float]:
    """Values per target pass on held-out prompts, sampled with the pipeline's own settings under exact rules."""
    prompts = [image_prompt(sample_image_scene(HELD_OUT + i), i) for i in range(count)]
    found = {}
    for name, shape in MEASURED.items():
        out = pipe(prompts, decoding=drafter.with_shape(shape), seed=0, pixels=False)
        found[f"accept_length_{name}"] = round(out.stats.accept_length, 3)
    return found


def build(
    out: Path, work: Path, pipe: ImagePipeline, recipe: ImageEagleRecipe = ImageEagleRecipe(), *, resume: bool = True
) -> dict[str, Any]:
    """Train over the model of `pipe` in `work/t2i_eagle` on images that it draws itself first, write fp16 weights and the
    card to `out`; returns the card."""
    codes = generated_codes(pipe, work, recipe.images)
    drafter, figures = train_image_eagle(recipe, pipe, codes, work / recipe.folder, resume)
    drafter.save_pretrained(out, dtype=torch.float16)
    told = "codes of images of the zoo's own text-to-image model and of pictures of the procedural world"
    facts = {"target": "t2i", "images": recipe.images, "steps": recipe.steps, "batch": recipe.batch,
             "training": rounded(figures), "evaluation": measure(pipe, drafter)}  # fmt: skip
    return write_card(out, recipe.name, drafter, told, **facts)
