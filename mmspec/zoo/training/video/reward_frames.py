"""Training frames of the zoo's reward, decoded from true, corrupted and generated latents of known scenes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec.core.keys import Keys
from mmspec.video.generation import KeyedBlockNoise
from mmspec.video.model import BlockVideoModel
from mmspec.video.pipeline import BlockVideoPipeline
from mmspec.zoo.training.training_sets import cached_set, fingerprint
from mmspec.zoo.training.video.clips import BLOCKS, PLAN, Clip, clip_bytes, clip_pixels, pixel_frames
from mmspec.zoo.world.scene import COLORS, SHAPES, pick
from mmspec.zoo.world.video import VideoScene, sample_video_scene
from mmspec.zoo.world.video_prompts import video_prompt

FIRST_SEED = (7 << 28) + (3 << 26)
KINDS = ("true", "noisy", "ghost", "mixed", "target", "draft")  # the origin of a member's latents
MEMBER_FRAMES = 6  # frames of a member
_CHUNK = 128


def kind_of(index: int) -> str:
    return KINDS[index % len(KINDS)]


def block_of(index: int) -> int:
    """Return the block of its clip that a member shows."""
    return index // len(KINDS) % BLOCKS


def reward_frames(
    target: BlockVideoPipeline, draft: BlockVideoPipeline, work: Path, count: int, first: int = FIRST_SEED,
    folder: str = "video_reward_frames",
) -> Tensor:  # fmt: skip
    """Return the frames of a set, cached in `work/FOLDER`. The member at an index shows the scene of seed `first` +
    index.

    Args:
        target: The target, which generates some of the members.
        draft: The drafter, which generates some of the members.
        work: The folder of training states.
        count: Number of members.
        first: Seed of the first scene.
        folder: Name of the cache folder.

    Returns:
        uint8 [count, MEMBER_FRAMES, 64, 64, 3].
    """

    def make(start: int, size: int) -> dict[str, Tensor]:
        return {"frames": torch.stack([_member_frames(target, draft, first, start + i) for i in range(size)])}

    models = (target.vae.model, target.model.transformer, draft.model.transformer)
    mark = "-".join([*(fingerprint(model, None) for model in models), str(first)])
    return cached_set("frames for the reward", work / folder, "frames", mark, count, make, chunk=_CHUNK)["frames"]


@torch.no_grad()
def _member_frames(target: BlockVideoPipeline, draft: BlockVideoPipeline, first: int, index: int) -> Tensor:
    scene, block, rng = sample_video_scene(first + index), block_of(index), np.random.default_rng((first, index))
    vae, latents = target.vae, _encode_scene(target, scene)
    film = list(latents.split(PLAN.size, 2))[:block]
    kind, own = kind_of(index), latents[:, :, PLAN.start(block) : PLAN.start(block) + PLAN.size]
    if kind in ("target", "draft"):
        model = target.model if kind == "target" else draft.model
        own = _generate_block(model, target.encoder([video_prompt(scene, index)]), film, index)
    elif kind != "true":
        own = _corrupt(kind, own, latents, target, first + index, rng)
    state = vae.decode(torch.cat(film, 2))[1] if film else None
    frames = clip_bytes(vae.decode(own, state)[0][0])
    return torch.from_numpy(frames[np.sort(rng.permutation(len(frames))[:MEMBER_FRAMES])])


def _corrupt(
    kind: str, own: Tensor, latents: Tensor, pipe: BlockVideoPipeline, seed: int, rng: np.random.Generator
) -> Tensor:
    """Mix a block's latents with noise, with another time of the same clip, or with another scene."""
    share = float(rng.uniform(0.1, 0.7))
    if kind == "noisy":
        other = torch.randn(own.shape, generator=torch.Generator().manual_seed(seed))
    elif kind == "ghost":
        at = int(rng.integers(latents.shape[2] - PLAN.size + 1))
        other = latents[:, :, at : at + PLAN.size]
    else:
        other = _encode_scene(pipe, sample_video_scene(seed + (1 << 24)))[:, :, -PLAN.size :]
    return (1 - share) * own + share * other


def _encode_scene(pipe: BlockVideoPipeline, scene: VideoScene) -> Tensor:
    return pipe.vae.encode(clip_pixels([Clip(scene)], pixel_frames(BLOCKS)))[0]


def _generate_block(model: BlockVideoModel, text: Tensor, film: list[Tensor], seed: int) -> Tensor:
    """Return the block that a model generates after true blocks."""
    state = model.open(text, KeyedBlockNoise(Keys.of(seed, 1)), (8, 8))
    return state.generate(film)


def altered_scene(scene: VideoScene, rng: np.random.Generator) -> VideoScene:
    """Return the scene with another color or shape for a mover, which a prompt then describes wrongly."""
    which = int(rng.integers(len(scene.movers)))
    mover = scene.movers[which]
    if rng.random() < 0.5:
        free = [color for color in COLORS if color not in {shown.color for shown in scene.movers}]
        other = replace(mover, color=pick(rng, free))
    else:
        free = [shape for shape in SHAPES if shape != mover.kind]
        other = replace(mover, kind=pick(rng, free), sample=-1)
    return replace(scene, movers=tuple(other if i == which else shown for i, shown in enumerate(scene.movers)))
