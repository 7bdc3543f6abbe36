"""What the trainings on the autoencoder's latents have in common: sizes and steps, the fixed sets, and their batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mmspec.imagegen.continuous.causal.config import CausalConfig
from mmspec.imagegen.continuous.mar.config import MARConfig

from ...architectures.pixels import to_pixels
from ...files.latents import Latents, encoded
from ...world.pictures import CLASSES, Picture, class_picture, sample_picture
from ..bars import bars
from ..loop import Plan
from .picture_batches import picture_arrays

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

Kind = Literal["classes", "prompts"]
FIRST_SEED = {"classes": (5 << 28) + (1 << 27), "prompts": (5 << 28) + (1 << 27) + (1 << 26)}


@dataclass(frozen=True, slots=True)
class LatentRecipe:
    """Everything that decides a model of continuous tokens.

    pictures: of each fixed set.   copies: draws of the head for one condition.   drop: share of rows without a condition.
    again: step from which on the schedule runs once more; 0 for never.
    """

    name: str
    config: MARConfig | CausalConfig
    steps: int
    lr: float = 1e-3
    batch: int = 32
    pictures: int = 20_480
    copies: int = 4
    drop: float = 0.1
    again: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.copies) < 1 or self.pictures < self.batch:
            raise ValueError(
                f"LatentRecipe: expected positive counts and a batch of pictures or more, got {self}; change them"
            )
        if not 0 <= self.drop < 1:
            raise ValueError(f"drop: expected a share from 0 to 1, got {self.drop}; use 0.1")

    @property
    def folder(self) -> str:
        """Of the state, in the work folder."""
        return self.name.replace("/", "_")

    def plan(self) -> Plan:
        """Its schedule for the training loop."""
        return Plan(self.steps, self.lr, warmup=min(100, self.steps // 2), weight_decay=0.02, again=self.again)

    def draws(self, step: int) -> torch.Generator:
        """What a step draws its masks, times and noise with."""
        return torch.Generator().manual_seed((self.seed << 32) + step)

    def dropped(self, labels: Tensor, drawn: torch.Generator) -> Tensor:
        """bool [B], the rows that lose their condition."""
        return torch.rand(len(labels), generator=drawn) < self.drop


def picture(kind: Kind, index: int) -> Picture:
    """The picture at an index of a fixed set: of the classes in turn, or any."""
    seed = FIRST_SEED[kind] + index
    return class_picture(index % CLASSES, seed) if kind == "classes" else sample_picture(seed)


def latent_set(vae: AutoencoderKL, work: Path, kind: Kind, count: int) -> Latents:
    """The latents of a fixed set, which lie in `work/latents/KIND` and are made where they are not."""

    def pixels(first: int, size: int) -> Tensor:
        return to_pixels(picture_arrays([picture(kind, first + i) for i in range(size)]))

    with bars() as progress:
        bar = progress.add_task(f"latents of {kind}", total=count, note="")
        made: Callable[[int], None] = lambda done: progress.update(bar, advance=done)  # noqa: E731
        return encoded(vae, work / "latents" / kind, pixels, count, made)


def class_labels(taken: Tensor) -> Tensor:
    """int64 [B], the classes of pictures of the set "classes"."""
    return taken % CLASSES


def facts(recipe: LatentRecipe, kinds: tuple[Kind, ...]) -> dict[str, Any]:
    """What a card tells of it."""
    seeds = {kind: [FIRST_SEED[kind], FIRST_SEED[kind] + recipe.pictures] for kind in kinds}
    return {"picture_seeds": seeds, "model_seed": recipe.seed, "steps": recipe.steps, "batch": recipe.batch}
