"""The recipe of trainings on latents, their fixed sets, and the share of requested objects in generated images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from PIL import Image
from torch import Tensor

from mmspec.imagegen.continuous.causal.transformer import CausalConfig
from mmspec.imagegen.continuous.mar.adapter import patchify
from mmspec.imagegen.continuous.mar.mar_config import MARConfig
from mmspec.zoo.architectures.object_detector import ObjectDetector
from mmspec.zoo.training.loop import ZooRecipe
from mmspec.zoo.training.training_sets import ImageLatents, cached_set, fingerprint
from mmspec.zoo.world.image import (
    CLASSES,
    HELD_OUT,
    ImageScene,
    class_image_scene,
    class_names,
    image_prompt,
    sample_image_scene,
)
from mmspec.zoo.world.pixels import image_arrays, to_pixels

if TYPE_CHECKING:
    from diffusers import AutoencoderKL


CHUNK, BATCH = 512, 64  # pictures per file of latents, and per forward pass of the encoder
Kind = Literal["classes", "prompts"]
KINDS: tuple[Kind, ...] = ("classes", "prompts")
FIRST_SEED = {"classes": (5 << 28) + (1 << 27), "prompts": (5 << 28) + (1 << 27) + (1 << 26)}


@dataclass(frozen=True, slots=True)
class LatentRecipe(ZooRecipe):
    data = "pictures of mmspec.zoo.world as latents of the zoo's kl"
    name: str
    config: MARConfig | CausalConfig
    steps: int
    lr: float = 1e-3
    batch: int = 32
    pictures: int = 20_480  # of each fixed set
    copies: int = 4  # samples of the head per condition
    drop: float = 0.1  # share of rows without a condition
    again: int = 0  # step at which the schedule starts a second time; 0 for never
    seed: int = 0

    def __post_init__(self) -> None:
        right = min(self.steps, self.batch, self.copies) >= 1 and self.pictures >= self.batch
        self.expect(right, "positive counts and a batch of pictures or more")
        if not 0 <= self.drop < 1:
            raise ValueError(f"drop: expected a share from 0 to 1, got {self.drop}; use 0.1")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return KINDS if isinstance(self.config, MARConfig) else ("classes",)

    def seeds(self) -> dict[str, Any]:
        return {"picture_seeds": {kind: [FIRST_SEED[kind], FIRST_SEED[kind] + self.pictures] for kind in self.kinds}}

    def dropped(self, labels: Tensor, drawn: torch.Generator) -> Tensor:
        """Return bool [B], the rows that lose their condition."""
        return torch.rand(len(labels), generator=drawn) < self.drop


def scene_at(kind: Kind, index: int) -> ImageScene:
    """Return the picture at an index of a fixed set: of the classes in turn, or of any class."""
    seed = FIRST_SEED[kind] + index
    return class_image_scene(index % CLASSES, seed) if kind == "classes" else sample_image_scene(seed)


def latent_set(vae: AutoencoderKL, work: Path, kind: Kind, count: int) -> ImageLatents:
    """Return the latents of a fixed set, cached in `work/latents/KIND`."""

    def pixels(first: int, size: int) -> Tensor:
        return to_pixels(image_arrays([scene_at(kind, first + i) for i in range(size)]))

    return encode_images(vae, work / "latents" / kind, pixels, count, f"latents of {kind}")


@torch.no_grad()
def encode_images(
    vae: AutoencoderKL, folder: Path, pixels: Callable[[int, int], Tensor], count: int, title: str
) -> ImageLatents:
    """Return the latents of pictures, (first index, size) -> float [size, 3, H, W] in -1..1, cached in `folder` by the
    fingerprint of the autoencoder."""
    scale = float(vae.config.scaling_factor)

    def make(first: int, size: int) -> dict[str, Tensor]:
        law = vae.encode(pixels(first, size).to(vae.device, vae.dtype)).latent_dist
        parts = {"mean": law.mean, "std": law.std}
        return {name: patchify(part.float() * scale, 1).half().cpu().contiguous() for name, part in parts.items()}

    mark = fingerprint(vae, scale)
    return ImageLatents(**cached_set(title, folder, "latents", mark, count, make, chunk=CHUNK, batch=BATCH))


def class_labels(members: Tensor) -> Tensor:
    """Return int64 [B], the classes of pictures of the set "classes"."""
    return members % CLASSES


RECOGNITION_SEED = HELD_OUT + (1 << 20)  # apart from the pictures of other figures
Draw = Callable[[Sequence[Any], list[int]], Sequence[Image.Image]]


def class_recognition(draw: Draw, judge: ObjectDetector, count: int = 256, batch: int = 64) -> dict[str, float]:
    """Return the shares of generated, (labels, seeds) -> pictures, and real pictures in which their class is detected."""
    labels = [index % CLASSES for index in range(count)]
    names = class_names()
    real = [class_image_scene(label, RECOGNITION_SEED + index) for index, label in enumerate(labels)]
    return _shares(draw, judge, labels, [names[label] for label in labels], real, batch)


def prompt_recognition(draw: Draw, judge: ObjectDetector, count: int = 256, batch: int = 64) -> dict[str, float]:
    """Return the shares of objects of held-out prompts detected in generated, (prompts, seeds) -> pictures, and real
    pictures."""
    pictures = [sample_image_scene(RECOGNITION_SEED + index) for index in range(count)]
    prompts = [image_prompt(picture, 0) for picture in pictures]
    return _shares(draw, judge, prompts, prompts, pictures, batch)


def _shares(
    draw: Draw,
    judge: ObjectDetector,
    prompts: Sequence[Any],
    names: Sequence[str],
    real: Sequence[ImageScene],
    batch: int,
) -> dict[str, float]:
    drawn: list[Image.Image] = []
    for first in range(0, len(prompts), batch):
        part = prompts[first : first + batch]
        drawn += draw(part, [(RECOGNITION_SEED + first + i) & (2**31 - 1) for i in range(len(part))])
    return {
        "recognised": round(judge.agreement(drawn, names), 4),
        "recognised_real": round(judge.agreement(torch.from_numpy(image_arrays(real)), names), 4),
    }
