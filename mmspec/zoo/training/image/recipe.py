"""The recipe of models that read images, and their training on rendered images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmspec.zoo.training.loop import ZooRecipe
from mmspec.zoo.world.image import ImageScene
from mmspec.zoo.world.pixels import sample_image_scenes

DAMAGED = "damaged by noise, blur, shifts and brightness"  # see `augment`
ImageLoss = Callable[[list[ImageScene], int], tuple[Tensor, dict[str, float]]]


@dataclass(frozen=True, slots=True)
class ImageRecipe(ZooRecipe):
    name: str
    steps: int
    lr: float
    batch: int
    first: int  # seed of the first picture
    warmup: int = 100
    weight_decay: float = 0.02
    seed: int = 0
    data: str = f"pictures of mmspec.zoo.world, {DAMAGED}"

    def __post_init__(self) -> None:
        self.expect(min(self.steps, self.batch) >= 1, "positive steps and batch")

    def pictures(self, step: int) -> list[ImageScene]:
        """No two steps share a picture."""
        return sample_image_scenes(self.first + step * self.batch, self.batch)

    def seeds(self) -> dict[str, Any]:
        return {"picture_seeds": [self.first, self.first + self.steps * self.batch]}

    def train_on_images(
        self, model: nn.Module, loss: ImageLoss, folder: Path, resume: bool = True, device: str = "cpu"
    ) -> dict[str, float]:
        """Train a model in place on a loss of the pictures and the number of a step; return the last figures."""
        model.to(device).train()
        return self.train(model, lambda step: loss(self.pictures(step), step), folder, resume)
