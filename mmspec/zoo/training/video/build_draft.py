"""Build the zoo's video drafter: a small model of two steps per block, trained on videos of the target.

Drafter and target receive the same noise for a block. The drafter is trained on straight paths from the noise to the
target's block, as in "Flow Straight and Fast: Learning to Generate and Transfer Data with Rectified Flow". Its one or
two steps then end close to the target's eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.core.round.keys import Keys
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
SWITCHED = 4  # every fourth member has another prompt from block CUT on
_CHUNK, _BATCH = 256, 32


@dataclass(frozen=True, slots=True)
class GeneratedVideos:
    latents: Tensor  # float16 [N, C, F, 8, 8], of the scenes from seed `first` on
    first: int

    def __len__(self) -> int:
        return len(self.latents)

    def batch(self, turn: int, size: int) -> tuple[list[int], Tensor]:
        """Return the members of a turn and their latents float32 [size, C, F, 8, 8]."""
        members = batch_members(len(self), size, turn)
        return members, self.latents[members].float()

    def noise(self, members: Sequence[int]) -> Tensor:
        """Return float32 [B, C, F, 8, 8]: the noise that the blocks of these members were generated from."""
        own = noise_of(members, self.first)
        return torch.cat([own.at(block, 0, _shape(self.latents.shape[1])) for block in range(BLOCKS)], 2)

    def prompts(self, members: Sequence[int], seed: int) -> list[tuple[int, int, list[str]]]:
        """Return the prompts as (first block, end block, texts), in words that follow from `seed`."""
        return [
            (0, CUT, [block_prompt(self.first, member, 0, seed) for member in members]),
            (CUT, BLOCKS, [block_prompt(self.first, member, CUT, seed) for member in members]),
        ]


def block_prompt(first: int, member: int, block: int, seed: int) -> str:
    switched = block >= CUT and member % SWITCHED == SWITCHED - 1
    return video_prompt(sample_video_scene(first + 2 * member + switched), seed, PROMPT_FRAMES)


def noise_of(members: Sequence[int], first: int) -> KeyedBlockNoise:
    """Return the noise of these members. The noise of a member does not depend on the other members."""
    return KeyedBlockNoise(Keys.of([first + 2 * member for member in members], len(members)))


def generated_videos(target: BlockVideoPipeline, work: Path, count: int, first: int = FIRST_SEED) -> GeneratedVideos:
    """Return the first members of a set, cached in `work/video_films_SEED`."""
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
    data = "videos that video draws for prompts of moving scenes, and their noise"
    sampler: FlowMap = FlowMap(2, shift=3.0, until=False)
    batch: int = 12
    members: int = 3072  # training videos of the target

    def __post_init__(self) -> None:
        right = min(self.steps, self.batch) >= 1 and self.members >= self.batch and self.objects >= 0
        self.expect(right, "positive counts and a batch of members or more")

    def seeds(self) -> dict[str, Any]:
        return {"scene_seeds": [FIRST_SEED, FIRST_SEED + 2 * self.members]}


def saliency(latents: Tensor) -> Tensor:
    """Return float32 [B, F, 8, 8] in 0..1 of latents [B, C, F, 8, 8] of unknown content: their distance from the median
    of the frame, relative to the largest."""
    most = latents.flatten(3).median(3).values[..., None, None]
    away = (latents - most).square().mean(1)
    return away / away.amax((2, 3), keepdim=True).clamp_min(1e-6)


def draft_loss(
    model: CausalWan, films: GeneratedVideos, recipe: DraftRecipe, encode: Encode, step: int, device: str = "cpu"
) -> tuple[Tensor, dict[str, float]]:
    """Return the mean error of the flow from the noise of all blocks of a step to the target's blocks, and its figures."""
    members, clean = films.batch(step, recipe.batch)
    segments = [(first, last, encode(texts)) for first, last, texts in films.prompts(members, step)]
    blocks = BlockClips(clean, films.noise(members), saliency(clean), segments)
    errors = flow_errors(model, blocks, recipe, recipe.draws(step), step, device)
    return errors.mean(), {"first": float(errors[:, 0].detach().mean()), "later": float(errors[:, -1].detach().mean())}


def train_draft(
    recipe: DraftRecipe, films: GeneratedVideos, encode: Encode, folder: Path, resume: bool = True, device: str = "cpu"
) -> tuple[CausalWan, dict[str, float]]:
    """Return the drafter, and its last mean errors: of all blocks, of first blocks and of last blocks."""

    def loss(model: CausalWan, step: int) -> tuple[Tensor, dict[str, float]]:
        return draft_loss(model, films, recipe, encode, step, device)

    return recipe.trained(lambda: new_model(recipe.config, recipe.seed), loss, folder, resume, device)


_HELD_OUT = HELD_OUT + (6 << 20)  # videos for the distances of the card


def draft_recipe(steps: int = 4000) -> DraftRecipe:
    """Three layers of 128, and a quarter of the target's forward passes per block."""
    return DraftRecipe("video/draft", video_config(4, 256, 3), steps, lr=2e-3)


def build(
    out: Path,
    work: Path,
    vae: Path,
    whole: Path,
    recipe: DraftRecipe,
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 32,
    blocks: int = 7,
) -> dict[str, Any]:
    """Train a drafter in `work/video_draft` on videos in `work/video_films_SEED`, and write fp16 weights with a card."""
    target = read_video(whole, vae, whole)
    if not resume:
        start_over(work / recipe.folder)
    films = generated_videos(target, work, recipe.members)
    model, figures = train_draft(recipe, films, target.encoder, work / recipe.folder, resume, device)
    write_video(model.cpu(), out, recipe.sampler, PLAN)
    pipe = read_video(out, vae, whole)
    scenes = [sample_video_scene(CARD_SEED + number) for number in range(measured)]
    distances = block_distances(pipe, generated_videos(target, work, 2 * measured, _HELD_OUT))
    measurements = {"held_out": distances, "evaluation": prompt_adherence(pipe, scenes, blocks)}
    return recipe.card(out, pipe.model.transformer, figures, measurements, batch=recipe.batch)


@torch.no_grad()
def block_distances(draft: BlockVideoPipeline, films: GeneratedVideos) -> dict[str, float]:
    """Return the squared distance of the drafter's blocks from the target's, with its context and noise, over the
    variance of the target's blocks, for first and for later blocks."""
    members = range(len(films))
    target = films.latents.float().split(PLAN.size, 2)
    text = draft.encoder([block_prompt(films.first, member, 0, member) for member in members])
    state = draft.model.open(text, noise_of(members, films.first), target[0].shape[-2:])
    distances = []
    for block in range(BLOCKS):
        if block:
            state.switch(draft.encoder([block_prompt(films.first, member, block, member) for member in members]), block)
        gap = (state.generate(list(target[:block])) - target[block]).square().mean()
        distances.append(float(gap / target[block].var()))
    return {"first": distances[0], "later": sum(distances[1:]) / len(distances[1:])}
