"""Build the zoo's block-causal video target on moving clips, and measure how well its videos follow their prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mmspec.video.generation import FlowMap
from mmspec.video.pipeline import BlockVideoPipeline
from mmspec.video.prompt_encoder import PromptEncoder
from mmspec.video.wan.wan_config import WanConfig
from mmspec.zoo.architectures.caption_encoder import WIDTH
from mmspec.zoo.files.video import read_prompts, read_video, read_video_vae, write_prompts, write_video
from mmspec.zoo.training.facts import train_video_prompt_encoder
from mmspec.zoo.training.loop import start_over
from mmspec.zoo.training.video.block_training import BlockRecipe, block_loss, train_blocks
from mmspec.zoo.training.video.clips import (
    PLAN,
    PROMPT_FRAMES,
    ClipSet,
    Kind,
    blocks_of,
    clip_pixels,
    clip_set,
    pixel_frames,
    training_clip,
)
from mmspec.zoo.world.tracking import marks
from mmspec.zoo.world.video import HELD_OUT, VideoScene, render_frames, sample_video_scene
from mmspec.zoo.world.video_prompts import LONGEST, named_movers, video_prompt, video_prompt_tokenizer

if TYPE_CHECKING:
    from mmspec.video.vae import StreamingWanVAE


def adherence(videos: Iterable[np.ndarray], prompts: Iterable[str]) -> dict[str, float]:
    """Return, for the objects of the prompts of videos uint8 [F, H, W, 3]: the share of frames in which the color is
    seen, and the shares of correct initial directions and of correct shapes."""
    scores: dict[str, list[float]] = {"seen": [], "direction": [], "shape": []}
    for frames, prompt in zip(videos, prompts, strict=True):
        for name, value in marks(frames, named_movers(prompt)):
            scores[name].append(value)
    return {name: float(np.mean(values)) if values else 0.0 for name, values in scores.items()}


def prompt_adherence(pipe: BlockVideoPipeline, scenes: Sequence[VideoScene], blocks: int) -> dict[str, float]:
    """Return `adherence` of videos generated for the prompts of scenes, and of the scenes rendered."""
    prompts = [video_prompt(scene, 0) for scene in scenes]
    videos = pipe(prompts, seed=list(range(len(scenes))), blocks=blocks).videos
    rendered = [render_frames(scene, len(video)) for scene, video in zip(scenes, videos, strict=True)]
    real = adherence(rendered, prompts)
    return {**adherence(videos, prompts), **{f"{name}_rendered": value for name, value in real.items()}}


CHANNELS = 8
CARD_SEED = HELD_OUT + (3 << 20)  # scenes of the card's prompts
_CLIPS = HELD_OUT + (4 << 20)  # clips for the held-out flow errors


def video_config(heads: int, feed_forward: int, layers: int) -> WanConfig:
    """Return a Wan config with 16 tokens of 2x2 latents per frame; a block attends to itself and two earlier blocks."""
    return WanConfig(
        num_attention_heads=heads,
        attention_head_dim=32,
        ffn_dim=feed_forward,
        num_layers=layers,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        text_dim=WIDTH,
        freq_dim=64,
        patch_size=(1, 2, 2),
        text_len=LONGEST,
        local_attn_size=3 * PLAN.size,
    )


def target_recipe(steps: int = 14_000, again: int = 7600) -> BlockRecipe:
    """Six layers of 192, 3.6 M parameters."""
    sampler = FlowMap(8, shift=3.0, until=False)
    return BlockRecipe("video", video_config(6, 640, 6), steps, lr=1.5e-3, sampler=sampler, again=again)


def build(
    out: Path,
    work: Path,
    vae: Path,
    recipe: BlockRecipe,
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 32,
    blocks: int = 7,
) -> dict[str, Any]:
    """Train a caption encoder and a target on latents in `work/video_latents`, and write fp16 weights with a card."""
    captions = work / f"{recipe.folder}_captions"
    if not resume:
        start_over(captions, work / recipe.folder)
    autoencoder = read_video_vae(vae)
    encoder = _trained_prompts(captions, recipe, out, resume)
    sets: dict[Kind, ClipSet] = {kind: clip_set(autoencoder, work, kind, count) for kind, count in recipe.clips}
    model, figures = train_blocks(recipe, sets, encoder, work / recipe.folder, resume, device)
    write_video(model, out, recipe.sampler, PLAN)
    pipe = read_video(out, vae, out)
    scenes = [sample_video_scene(CARD_SEED + number) for number in range(measured)]
    measurements = {"held_out": held_out(pipe, recipe), "evaluation": prompt_adherence(pipe, scenes, blocks)}
    return recipe.card(out, pipe.model.transformer, figures, measurements, batch=[recipe.batch, recipe.starts])


def _trained_prompts(folder: Path, recipe: BlockRecipe, out: Path, resume: bool) -> PromptEncoder:
    reader = train_video_prompt_encoder(folder, recipe.config.dim, PROMPT_FRAMES, resume=resume)
    write_prompts(reader.encoder, video_prompt_tokenizer(), out)
    return read_prompts(out)  # trains on the encoder as it is stored


def held_out(pipe: BlockVideoPipeline, recipe: BlockRecipe, count: int = 8) -> dict[str, float]:
    """Return mean flow errors on held-out clips: of all blocks, of first blocks and of last blocks."""
    sums: dict[str, float] = {}
    for number in range(count):
        clips = [_held_out_clip(kind, number, pipe.vae) for kind in ("whole", "starts")]
        with torch.no_grad():
            loss, notes = block_loss(pipe.model.transformer, *clips, recipe, pipe.encoder, number)
        for name, value in {"loss": float(loss), **notes}.items():
            sums[name] = sums.get(name, 0.0) + value / count
    return sums


def _held_out_clip(kind: Kind, index: int, vae: StreamingWanVAE) -> tuple[list, torch.Tensor]:
    clip = training_clip(kind, index, vae.layout.channels, _CLIPS)
    return [clip], vae.encode(clip_pixels([clip.clip()], pixel_frames(blocks_of(kind))))[0]
