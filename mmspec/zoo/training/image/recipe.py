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
    """All settings of a training on images.

    Attributes:
        batch: Pictures per step.
        first: Seed of the first picture.
    """

    name: str
    steps: int
    lr: float
    batch: int
    first: int
    warmup: int = 100
    weight_decay: float = 0.02
    seed: int = 0
    data: str = f"pictures of mmspec.zoo.world, {DAMAGED}"

    def __post_init__(self) -> None:
        self.expect(min(self.steps, self.batch) >= 1, "positive steps and batch")

    def pictures(self, step: int) -> list[ImageScene]:
        """Return the pictures of a step. No two steps share a picture."""
        return sample_image_scenes(self.first + step * self.batch, self.batch)

    def seeds(self) -> dict[str, Any]:
        return {"picture_seeds": [self.first, self.first + self.steps * self.batch]}

    def train_on_images(
        self, model: nn.Module, loss: ImageLoss, folder: Path, resume: bool = True, device: str = "cpu"
    ) -> dict[str, float]:
        """Train a model in place.

        Args:
            model: The model.
            loss: Computes loss and figures from the pictures and the number of a step.
            folder: The folder of the state and the log.
            resume: Whether to continue from the state in `folder`.
            device: The device of the training.

        Returns:
            The means of the last logged steps.
        """
        model.to(device).train()
        return self.train(model, lambda step: loss(self.pictures(step), step), folder, resume)
