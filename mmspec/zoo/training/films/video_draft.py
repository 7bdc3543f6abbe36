"""Training of the zoo's video drafter on what its target draws."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from mmspec.video.generation.flow_map import FlowMap
from mmspec.video.text import Encode
from mmspec.video.wan.transformer import CausalWan

from ..loop import train
from .block_flow import Blocks, FlowRecipe, flow_errors, new_model
from .drawn_films import FilmSet


@dataclass(frozen=True, slots=True)
class DraftRecipe(FlowRecipe):
    """Everything that decides a drafter; `members`: videos of the target that it learns from."""

    sampler: FlowMap = FlowMap(2, shift=3.0, until=False)
    batch: int = 12
    members: int = 3072

    def __post_init__(self) -> None:
        if min(self.steps, self.batch) < 1 or self.members < self.batch or self.objects < 0:
            raise ValueError(
                f"DraftRecipe: expected positive counts and a batch of members or more, got {self}; change them"
            )


def standing_out(latents: Tensor) -> Tensor:
    """float32 [B, F, 8, 8] in 0..1, how far each latent of [B, C, F, 8, 8] is from most of its frame, against the farthest:
    where objects are in videos of which nothing else is known."""
    most = latents.flatten(3).median(3).values[..., None, None]
    away = (latents - most).square().mean(1)
    return away / away.amax((2, 3), keepdim=True).clamp_min(1e-6)


def film_loss(
    model: CausalWan, films: FilmSet, recipe: DraftRecipe, encode: Encode, step: int, device: str = "cpu"
) -> tuple[Tensor, dict[str, float]]:
    """Mean error of the flow from the noise of all blocks of a step's members to what the target has made of it."""
    members, clean = films.batch(step, recipe.batch)
    segments = [(first, last, encode(texts)) for first, last, texts in films.prompts(members, step)]
    blocks = Blocks(clean, films.noise(members), standing_out(clean), segments)
    errors = flow_errors(model, blocks, recipe, recipe.draws(step), step, device)
    return errors.mean(), {"first": float(errors[:, 0].detach().mean()), "later": float(errors[:, -1].detach().mean())}


def train_draft(
    recipe: DraftRecipe, films: FilmSet, encode: Encode, folder: Path, resume: bool = True, device: str = "cpu"
) -> tuple[CausalWan, dict[str, float]]:
    """Trains a drafter; returns it and its last means: errors of all blocks, of first and of last ones.

    State and log lie in `folder`.
    """
    model = new_model(recipe.config, recipe.seed).to(device).train()

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        return film_loss(model, films, recipe, encode, step, device)

    figures = train(model, loss_of, recipe.plan(), folder, recipe.name, resume)
    return model.eval().requires_grad_(False), figures
