"""Training of the zoo's upsampler for MuLo-SD: codes of 32x32 pictures to codes of 64x64 pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.imagegen.llamagen.vq import VQModel
from mmspec.imagegen.multiscale.upsamplers import LatentUpsampler, upsampler_loss
from mmspec.zoo.files.image import read_vq
from mmspec.zoo.training.loop import ZooRecipe
from mmspec.zoo.world.image import HELD_OUT, low_res
from mmspec.zoo.world.pixels import image_arrays, sample_image_scenes, to_pixels

FIRST_SEED = (1 << 28) + (1 << 27)
LowResSource = Callable[[int, int], np.ndarray]


@dataclass(frozen=True, slots=True)
class UpsamplerRecipe(ZooRecipe):
    name, warmup, weight_decay, data = "t2i/upsampler", 50, 0.01, "pictures of mmspec.zoo.world at both sizes"
    width: int = 64  # channels
    blocks: int = 3
    steps: int = 600
    lr: float = 2e-3
    batch: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        self.expect(min(self.steps, self.batch) >= 1, "at least one step and picture")

    def seeds(self) -> dict[str, Any]:
        return {"picture_seeds": [FIRST_SEED, FIRST_SEED + self.steps * self.batch]}


def render_images(first: int, count: int) -> np.ndarray:
    """Return uint8 [count, 64, 64, 3]."""
    return image_arrays(sample_image_scenes(first, count))


@torch.no_grad()
def low_codes(vq: VQModel, arrays: np.ndarray) -> Tensor:
    """Return the codes of the pictures at half their side, int64 [B, r, c]."""
    rows, codes = vq.encode(to_pixels(low_res(arrays)))
    return codes.view(len(codes), *rows.shape[2:])


def train_upsampler(
    vq: VQModel,
    folder: Path,
    recipe: UpsamplerRecipe = UpsamplerRecipe(),
    pictures: LowResSource = render_images,
    resume: bool = True,
) -> tuple[LatentUpsampler, dict[str, float]]:
    """Train on pictures rendered on the fly: (first seed, count) -> uint8 [count, S, S, 3]. The tokenizer of both sizes
    is unchanged."""
    flags = [parameter.requires_grad for parameter in vq.parameters()]
    vq.eval().requires_grad_(False)

    def loss(model: LatentUpsampler, step: int) -> tuple[Tensor, dict[str, float]]:
        arrays = pictures(FIRST_SEED + step * recipe.batch, recipe.batch)
        return upsampler_loss(model, vq, low_codes(vq, arrays), to_pixels(arrays))

    trained = recipe.trained(
        lambda: LatentUpsampler.of(vq.codebook(), width=recipe.width, blocks=recipe.blocks), loss, folder, resume
    )
    for parameter, needed in zip(vq.parameters(), flags, strict=True):
        parameter.requires_grad_(needed)
    return trained


@torch.no_grad()
def evaluate_upsampler(
    model: LatentUpsampler, vq: VQModel, count: int = 64, pictures: LowResSource = render_images
) -> dict[str, float]:
    """Return the share of held-out codes that equal the encoder's, and L1 of the decoded pixels (of 2)."""
    arrays = pictures(HELD_OUT, count)
    notes = upsampler_loss(model, vq, low_codes(vq, arrays), to_pixels(arrays))[1]
    return {"hit": notes["hit"], "l1": notes["l1"]}


def build(
    out: Path,
    work: Path,
    whole: Path,
    recipe: UpsamplerRecipe = UpsamplerRecipe(),
    *,
    resume: bool = True,
    measured: int = 256,
) -> dict[str, Any]:
    """Train the upsampler in `work/t2i_upsampler` over the tokenizer in `whole`, and write fp16 weights with a card."""
    vq = read_vq(whole / "vq")
    model, figures = train_upsampler(vq, work / recipe.folder, recipe, resume=resume)
    model.save_pretrained(out, dtype=torch.float16)
    model = LatentUpsampler.from_pretrained(out)
    return recipe.card(out, model, figures, {"held_out": evaluate_upsampler(model, vq, measured)})
