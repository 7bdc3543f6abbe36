"""Build the zoo's block-causal video target, on moving clips, and its caption encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mmspec.video.generation.flow_map import FlowMap
from mmspec.video.pipeline import BlockVideoPipeline
from mmspec.video.text import PromptEncoder
from mmspec.video.wan.config import WanConfig

from ...architectures.caption_encoder import WIDTH
from ...files.cards import rounded, write_card
from ...files.video import read_prompts, read_video, read_video_vae, write_prompts, write_video
from ...world.moving import HELD_OUT, sample_moving
from ...world.moving_prompts import LONGEST, moving_tokenizer
from ..loop import start_over
from .caption_encoder import train_moving_encoder
from .clip_sets import PLAN, SEEDS, TOLD, ClipSet, Kind, blocks_of, clip_set, member, pixel_frames
from .moving_clips import clip_pixels
from .moving_quality import drawn_shares
from .video_blocks import BlockRecipe, block_loss, train_blocks

if TYPE_CHECKING:
    from mmspec.video.vae.wan import StreamingWanVAE

CHANNELS = 8
ASKED = HELD_OUT + (3 << 20)  # scenes whose prompts the card's videos are of
_CLIPS = HELD_OUT + (4 << 20)  # clips whose flow is measured


def video_config(heads: int, feed_forward: int, layers: int) -> WanConfig:
    """Wan with a token a square of four latents, 16 a frame; a block sees itself and two before it."""
    return WanConfig(num_attention_heads=heads, attention_head_dim=32, ffn_dim=feed_forward, num_layers=layers,
                     in_channels=CHANNELS, out_channels=CHANNELS, text_dim=WIDTH, freq_dim=64, patch_size=(1, 2, 2),
                     text_len=LONGEST, local_attn_size=3 * PLAN.size)  # fmt: skip


def target_recipe(steps: int = 14_000, again: int = 7600) -> BlockRecipe:
    """The target: six layers of 192, 3.6 M parameters."""
    sampler = FlowMap(8, shift=3.0, until=False)
    return BlockRecipe("video", video_config(6, 640, 6), steps, lr=1.5e-3, sampler=sampler, again=again)


def build(
    out: Path,
    work: Path,
    vae: Path,
    recipe: BlockRecipe | None = None,
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 32,
    blocks: int = 7,
) -> dict[str, Any]:
    """Train a caption encoder in `work/video_captions`, and a model in `work/video` over latents in `work/video_latents`;
    write fp16 weights of both and the card, which is returned, to `out`.

    vae: folder of the autoencoder.   recipe: None for the one to ship.   measured: videos of so many blocks that the card's
    figures are of.
    """
    recipe = target_recipe() if recipe is None else recipe
    captions = work / f"{recipe.folder}_captions"
    if not resume:
        start_over(captions, work / recipe.folder)
    autoencoder = read_video_vae(vae)
    encoder = _trained_prompts(captions, recipe, out, resume)
    sets: dict[Kind, ClipSet] = {kind: clip_set(autoencoder, work, kind, count) for kind, count in recipe.clips}
    model, figures = train_blocks(recipe, sets, encoder, work / recipe.folder, resume, device)
    write_video(model, out, recipe.sampler, PLAN)
    pipe = read_video(out, vae, out)
    scenes = [sample_moving(ASKED + number) for number in range(measured)]
    seeds = {kind: [SEEDS[kind], SEEDS[kind] + 2 * count] for kind, count in recipe.clips}
    return write_card(
        out, recipe.name, pipe.model.transformer, "moving scenes of mmspec.zoo.world as latents of the zoo's video/vae",
        scene_seeds=seeds, model_seed=recipe.seed, steps=recipe.steps, batch=[recipe.batch, recipe.starts],
        training=rounded(figures), held_out=held_out(pipe, recipe),
        evaluation=rounded(drawn_shares(pipe, scenes, blocks)),
    )  # fmt: skip


def _trained_prompts(folder: Path, recipe: BlockRecipe, out: Path, resume: bool) -> PromptEncoder:
    reader = train_moving_encoder(folder, recipe.config.dim, TOLD, resume=resume)
    write_prompts(reader.encoder, moving_tokenizer(), out)
    return read_prompts(out)  # what a reader of the files gets is what is trained on


def held_out(pipe: BlockVideoPipeline, recipe: BlockRecipe, count: int = 8) -> dict[str, float]:
    """Errors of the flow on clips that no training sees: of all blocks, of first and of last ones."""
    sums: dict[str, float] = {}
    for number in range(count):
        clips = [_unseen(kind, number, pipe.vae) for kind in ("whole", "starts")]
        with torch.no_grad():
            loss, notes = block_loss(pipe.model.transformer, *clips, recipe, pipe.encoder, number)
        for name, value in {"loss": float(loss), **notes}.items():
            sums[name] = sums.get(name, 0.0) + value / count
    return rounded(sums)


def _unseen(kind: Kind, index: int, vae: StreamingWanVAE) -> tuple[list, torch.Tensor]:
    one = member(kind, index, vae.layout.channels, _CLIPS)
    return [one], vae.encode(clip_pixels([one.clip()], pixel_frames(blocks_of(kind))))[0]
