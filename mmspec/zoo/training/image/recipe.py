"""The recipe of models that read images, and their training on rendered images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmspec.zoo.training.loop import ZooRecipe, train
from mmspec.zoo.world.image import ImageScene
from mmspec.zoo.world.pixels import sample_image_scenes

ImageLoss = Callable[[list[ImageScene], int], tuple[Tensor, dict[str, float]]]


@dataclass(frozen=True, slots=True)
class ImageRecipe(ZooRecipe):
    """Everything that decides such a training.

    first: seed of the first picture.   seed: of the model.
    """

    steps: int
    lr: float
    batch: int
    first: int
    warmup: int = 100
    weight_decay: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise ValueError(f"ImageRecipe: expected positive steps and batch, got {self}; change them")

    def pictures(self, step: int) -> list[ImageScene]:
        """The pictures of a step, none of them those of another step."""
        return sample_image_scenes(self.first + step * self.batch, self.batch)

    def facts(self) -> dict[str, Any]:
        """What a card tells of it."""
        seeds = [self.first, self.first + self.steps * self.batch]
        return {"picture_seeds": seeds, "model_seed": self.seed, "steps": self.steps, "batch": self.batch}


def train_on_images(
    model: nn.Module, loss: ImageLoss, recipe: ImageRecipe, folder: Path, title: str, resume: bool = True,
    device: str = "cpu",
) -> dict[str, float]:  # fmt: skip
    """Train `model` in place on `loss(pictures, step)`; returns the last means. State and log lie in `folder`."""
    model.to(device).train()
    return train(model, lambda step: loss(recipe.pictures(step), step), recipe.plan(), folder, title, resume)
