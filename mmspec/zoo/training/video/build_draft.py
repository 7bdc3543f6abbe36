"""Build the zoo's video drafter: a small model of two steps a block that learns from videos of the target.

Both are handed the same noise for a block, of which the target's flow makes one block. Between noise and block the drafter
is trained on straight paths, as rectified flows are ("Flow Straight and Fast: Learning to Generate and Transfer Data with
Rectified Flow"), so that one or two steps end close to where the target's eight do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.core.keys import Keys
from mmspec.video.generation import FlowMap, KeyedBlockNoise
from mmspec.video.pipeline import BlockVideoPipeline
from mmspec.video.prompt_encoder import Encode
from mmspec.video.wan.transformer import CausalWan
from mmspec.zoo.files.video import read_video, write_video
from mmspec.zoo.training.loop import start_over
from mmspec.zoo.training.training_sets import Tensors, batch_members, cached_set, fingerprint
from mmspec.zoo.training.video.block_flow import BlockClips, FlowRecipe, flow_errors, new_model
from mmspec.zoo.training.video.build_target import CARD_SEED, prompt_adherence, video_config
from mmspec.zoo.training.video.clips import BLOCKS, CUT, PLAN, PROMPT_FRAMES
from mmspec.zoo.world.video import HELD_OUT, sample_video_scene
from mmspec.zoo.world.video_prompts import video_prompt

FIRST_SEED = (7 << 28) + (2 << 26) + (1 << 25)
SWITCHED = 4  # every fourth member is asked for something else from block CUT on
_CHUNK, _BATCH = 256, 32


@dataclass(frozen=True, slots=True)
class GeneratedVideos:
    """latents: float16 [N, C, F, 8, 8] of the members of the scenes from seed `first` on."""

    latents: Tensor
    first: int

    def __len__(self) -> int:
        return len(self.latents)

    def batch(self, turn: int, size: int) -> tuple[list[int], Tensor]:
        """The members of a turn and their latents float32 [size, C, F, 8, 8]."""
        taken = batch_members(len(self), size, turn)
        return taken, self.latents[taken].float()

    def noise(self, members: Sequence[int]) -> Tensor:
        """float32 [B, C, F, 8, 8], what the blocks of these members were drawn from."""
        own = noise_of(members, self.first)
        return torch.cat([own.at(block, 0, _shape(self.latents.shape[1])) for block in range(BLOCKS)], 2)

    def prompts(self, members: Sequence[int], seed: int) -> list[tuple[int, int, list[str]]]:
        """What was asked for, in words that follow from `seed`: texts from which block to which."""
        return [
            (0, CUT, [block_prompt(self.first, member, 0, seed) for member in members]),
            (CUT, BLOCKS, [block_prompt(self.first, member, CUT, seed) for member in members]),
        ]


def block_prompt(first: int, member: int, block: int, seed: int) -> str:
    """The prompt that a block of a member has."""
    switched = block >= CUT and member % SWITCHED == SWITCHED - 1
    return video_prompt(sample_video_scene(first + 2 * member + switched), seed, PROMPT_FRAMES)


def noise_of(members: Sequence[int], first: int) -> KeyedBlockNoise:
    """Of these members; the noise of one does not depend on which others are asked for."""
    return KeyedBlockNoise(Keys.of([first + 2 * member for member in members], len(members)))


def generated_videos(target: BlockVideoPipeline, work: Path, count: int, first: int = FIRST_SEED) -> GeneratedVideos:
    """The first members of a set, stored in `work/video_films_SEED`."""
    mark, folder = fingerprint(target.model.transformer, (target.model.sampler, first)), work / f"video_films_{first}"
    make = partial(_generate, target, first)
    tensors = cached_set("videos of the target", folder, "films", mark, count, make, chunk=_CHUNK, batch=_BATCH)
    return GeneratedVideos(tensors["latents"], first)


def _generate(target: BlockVideoPipeline, first: int, start: int, size: int) -> Tensors:
    members = range(start, start + size)
    texts = {
        block: target.encoder([block_prompt(first, member, block, member) for member in members]) for block in (0, CUT)
    }
    state = target.model.open(texts[0], noise_of(members, first), _shape(target.model.channels)[2:])
    film: list[Tensor] = []
    for block in range(BLOCKS):
        if block == CUT:
            state.switch(texts[CUT], CUT)
        film.append(state.generate(film))
    return {"latents": torch.cat(film, 2).half()}


def _shape(channels: int) -> tuple[int, int, int, int]:
    return (channels, PLAN.size, 8, 8)


@dataclass(frozen=True, slots=True)
class DraftRecipe(FlowRecipe):
    """Everything that decides a drafter; `members`: videos of the target that it learns from."""

    data = "videos that video draws for prompts of moving scenes, and their noise"
    sampler: FlowMap = FlowMap(2, shift=3.0, until=False)
    batch: int = 12
    members: int = 3072

    def __post_init__(self) -> None:
        right = min(self.steps, self.batch) >= 1 and self.members >= self.batch and self.objects >= 0
        self.expect(right, "positive counts and a batch of members or more")

    def seeds(self) -> dict[str, Any]:
        return {"scene_seeds": [FIRST_SEED, FIRST_SEED + 2 * self.members]}


def saliency(latents: Tensor) -> Tensor:
    """float32 [B, F, 8, 8] in 0..1, how far each latent of [B, C, F, 8, 8] is from most of its frame, against the farthest:
    where objects are in videos of which nothing else is known."""
    most = latents.flatten(3).median(3).values[..., None, None]
    away = (latents - most).square().mean(1)
    return away / away.amax((2, 3), keepdim=True).clamp_min(1e-6)


def draft_loss(
    model: CausalWan, films: GeneratedVideos, recipe: DraftRecipe, encode: Encode, step: int, device: str = "cpu"
) -> tuple[Tensor, dict[str, float]]:
    """Mean error of the flow from the noise of all blocks of a step's members to what the target has made of it."""
    members, clean = films.batch(step, recipe.batch)
    segments = [(first, last, encode(texts)) for first, last, texts in films.prompts(members, step)]
    blocks = BlockClips(clean, films.noise(members), saliency(clean), segments)
    errors = flow_errors(model, blocks, recipe, recipe.draws(step), step, device)
    return errors.mean(), {"first": float(errors[:, 0].detach().mean()), "later": float(errors[:, -1].detach().mean())}


def train_draft(
    recipe: DraftRecipe, films: GeneratedVideos, encode: Encode, folder: Path, resume: bool = True, device: str = "cpu"
) -> tuple[CausalWan, dict[str, float]]:
    """A trained drafter and its last means: errors of all blocks, of first and of last ones. State and log lie in `folder`."""

    def loss(model: CausalWan, step: int) -> tuple[Tensor, dict[str, float]]:
        return draft_loss(model, films, recipe, encode, step, device)

    return recipe.trained(lambda: new_model(recipe.config, recipe.seed), loss, folder, resume, device)


_HELD_OUT = HELD_OUT + (6 << 20)  # films that distances are measured on


def draft_recipe(steps: int = 4000) -> DraftRecipe:
    """Three layers of 128, and a quarter of the passes a block."""
    return DraftRecipe("video/draft", video_config(4, 256, 3), steps, lr=2e-3)


def build(
    out: Path, work: Path, vae: Path, whole: Path, recipe: DraftRecipe, *, resume: bool = True,
    device: str = "cpu", measured: int = 32, blocks: int = 7,
) -> dict[str, Any]:  # fmt: skip
    """Train in `work/video_draft` over videos in `work/video_films_SEED`, write fp16 weights and the card, which is returned,
    to `out`.

    vae, whole: folders of the autoencoder and of the target, whose caption encoder is shared.
    measured: videos of so many blocks that the card's figures are of.
    """
    target = read_video(whole, vae, whole)
    if not resume:
        start_over(work / recipe.folder)
    films = generated_videos(target, work, recipe.members)
    model, figures = train_draft(recipe, films, target.encoder, work / recipe.folder, resume, device)
    write_video(model.cpu(), out, recipe.sampler, PLAN)
    pipe = read_video(out, vae, whole)
    scenes = [sample_video_scene(CARD_SEED + number) for number in range(measured)]
    distances = block_distances(pipe, generated_videos(target, work, 2 * measured, _HELD_OUT))
    found = {"held_out": distances, "evaluation": prompt_adherence(pipe, scenes, blocks)}
    return recipe.card(out, pipe.model.transformer, figures, found, batch=recipe.batch)


@torch.no_grad()
def block_distances(draft: BlockVideoPipeline, films: GeneratedVideos) -> dict[str, float]:
    """How far the drafter's blocks are from the target's, behind the target's own and from the same noise: squared distance
    over the spread of the target's blocks, of first blocks and of later ones."""
    members = range(len(films))
    target = films.latents.float().split(PLAN.size, 2)
    text = draft.encoder([block_prompt(films.first, member, 0, member) for member in members])
    state = draft.model.open(text, noise_of(members, films.first), target[0].shape[-2:])
    found = []
    for block in range(BLOCKS):
        if block:
            state.switch(draft.encoder([block_prompt(films.first, member, block, member) for member in members]), block)
        gap = (state.generate(list(target[:block])) - target[block]).square().mean()
        found.append(float(gap / target[block].var()))
    return {"first": found[0], "later": sum(found[1:]) / len(found[1:])}
