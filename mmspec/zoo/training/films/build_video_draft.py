"""Build the zoo's video drafter: a small block-causal model of two steps a block that learns from what "video" draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mmspec.video.pipeline import BlockVideoPipeline

from ...files.cards import rounded, write_card
from ...files.video import read_video, write_video
from ...world.moving import HELD_OUT, sample_moving
from ..loop import start_over
from .build_video import ASKED, video_config
from .clip_sets import BLOCKS, PLAN
from .drawn_films import FIRST_SEED, FilmSet, asked, film_set, noise_of
from .moving_quality import drawn_shares
from .video_draft import DraftRecipe, train_draft

_UNSEEN = HELD_OUT + (6 << 20)  # films that distances are measured on


def draft_recipe(steps: int = 4000) -> DraftRecipe:
    """Three layers of 128, and a quarter of the passes a block."""
    return DraftRecipe("video/draft", video_config(4, 256, 3), steps, lr=2e-3)


def build(
    out: Path,
    work: Path,
    vae: Path,
    whole: Path,
    recipe: DraftRecipe | None = None,
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 32,
    blocks: int = 7,
) -> dict[str, Any]:
    """Train in `work/video_draft` over videos in `work/video_films_SEED`, write fp16 weights and the card, which is returned,
    to `out`.

    vae, whole: folders of the autoencoder and of the target, whose caption encoder is shared.   recipe: None for the one to
    ship.   measured: videos of so many blocks that the card's figures are of.
    """
    recipe = draft_recipe() if recipe is None else recipe
    target = read_video(whole, vae, whole)
    if not resume:
        start_over(work / recipe.folder)
    films = film_set(target, work, recipe.members)
    model, figures = train_draft(recipe, films, target.encoder, work / recipe.folder, resume, device)
    write_video(model.cpu(), out, recipe.sampler, PLAN)
    pipe = read_video(out, vae, whole)
    scenes = [sample_moving(ASKED + number) for number in range(measured)]
    return write_card(
        out, recipe.name, pipe.model.transformer, "videos that video draws for prompts of moving scenes, and their noise",
        scene_seeds=[FIRST_SEED, FIRST_SEED + 2 * recipe.members], model_seed=recipe.seed, steps=recipe.steps,
        batch=recipe.batch, training=rounded(figures), held_out=strays(pipe, film_set(target, work, 2 * measured, _UNSEEN)),
        evaluation=rounded(drawn_shares(pipe, scenes, blocks)),
    )  # fmt: skip


@torch.no_grad()
def strays(draft: BlockVideoPipeline, films: FilmSet) -> dict[str, float]:
    """How far the drafter's blocks are from the target's, behind the target's own and from the same noise: squared distance
    over the spread of the target's blocks, of first blocks and of later ones."""
    members = range(len(films))
    target = films.latents.float().split(PLAN.size, 2)
    text = draft.encoder([asked(films.first, member, 0, member) for member in members])
    state = draft.model.open(text, noise_of(members, films.first), target[0].shape[-2:])
    found = []
    for block in range(BLOCKS):
        if block:
            state.switch(draft.encoder([asked(films.first, member, block, member) for member in members]), block)
        gap = (state.generate(list(target[:block])) - target[block]).square().mean()
        found.append(float(gap / target[block].var()))
    return rounded({"first": found[0], "later": sum(found[1:]) / len(found[1:])})
