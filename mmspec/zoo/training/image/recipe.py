"""What the trainings of models that read pictures have in common: seeds, schedule, and the loop over rendered pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmspec.zoo.training.loop import TrainingPlan, train
from mmspec.zoo.world.image import ImageScene
from mmspec.zoo.world.pixels import sample_image_scenes

ImageLoss = Callable[[list[ImageScene], int], tuple[Tensor, dict[str, float]]]


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """Everything that decides such a training.

    first: seed of the first picture.   seed: of the model.   warmup: at most half of the steps are.
    """

    steps: int
    lr: float
    batch: int
    warmup: int
    weight_decay: float
    first: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise ValueError(f"PictureRecipe: expected positive steps and batch, got {self}; change them")

    def pictures(self, step: int) -> list[ImageScene]:
        """The pictures of a step, none of them those of another step."""
        return sample_image_scenes(self.first + step * self.batch, self.batch)

    def plan(self) -> TrainingPlan:
        """Its schedule for the training loop."""
        return TrainingPlan(
            self.steps, self.lr, warmup=min(self.warmup, self.steps // 2), weight_decay=self.weight_decay
        )

    def facts(self) -> dict[str, Any]:
        """What a card tells of it."""
        seeds = [self.first, self.first + self.steps * self.batch]
        return {"picture_seeds": seeds, "model_seed": self.seed, "steps": self.steps, "batch": self.batch}


def train_on_images(
    model: nn.Module,
    loss: ImageLoss,
    recipe: ImageRecipe,
    folder: Path,
    title: str,
    resume: bool = True,
    device: str = "cpu",
) -> dict[str, float]:
    """Train `model` in place on `loss(pictures, step)`; returns the last means. State and log lie in `folder`."""
    model.to(device).train()
    return train(model, lambda step: loss(recipe.pictures(step), step), recipe.plan(), folder, title, resume)
