"""Build the zoo's model of video codes: its transformer over frames of "t2i"'s codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mmspec.imagegen.jacobi import SCD
from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.imagegen.llamagen.text import CaptionEncoder

from ...architectures.caption_encoder import WIDTH
from ...files.cards import rounded, write_card
from ...files.llamagen import read_vq, write_transformer
from ...files.video import read_prompts, read_video_codes
from ...world.moving import HELD_OUT, sample_moving
from ...world.moving_frames import render_frames
from ...world.moving_prompts import LONGEST, moving_prompt, named_movers
from ...world.pictures import low_res
from ...world.tracking import agreement
from ..loop import start_over
from .caption_encoder import train_moving_projection
from .video_codes import FIRST_SEED, VideoRecipe, held_out_videos, train_video_codes

FRAMES = 8
DRAWN = HELD_OUT + (1 << 20)  # apart from the scenes that other figures are of


def recipe_of(steps: int = 6200, again: int = 3000, short_steps: int = 1500) -> VideoRecipe:
    """Text to 8 frames of 8x8 codes, 32x32 pixels: in frames of 16x16 codes a model of this size learns four times as slowly.

    Of the 16 pairs of a head four turn with time, six with rows, six with columns. No axis is longer than 8 steps, so the base
    is 100: with 10000 most pairs would hardly turn, and that the place in the frame before says most about a code would be
    learnt late.
    """
    config = GPTConfig(dim=128, n_layer=6, n_head=4, multiple_of=64, vocab_size=1024, block_size=64, model_type="t2i",
                       cls_token_num=LONGEST, caption_dim=WIDTH, frames=FRAMES, time_pairs=4, rope_base=100)  # fmt: skip
    return VideoRecipe("video/tokens", config, steps, again=again, short_steps=short_steps)


def build(
    out: Path, work: Path, vq: Path, whole: Path, recipe: VideoRecipe | None = None, *, resume: bool = True,
    device: str = "cpu", measured: int = 32,
) -> dict[str, Any]:  # fmt: skip
    """Writes the transformer in fp16 and its card to `out`, returns the card.

    vq: folder of the tokenizer that every frame goes through.   whole: folder whose caption encoder is shared.
    measured: held-out prompts that are drawn for the card.
    """
    recipe = recipe or recipe_of()
    config, name = recipe.config, recipe.name.replace("/", "_")
    encoder_work, gpt_work = work / f"{name}_captions", work / name
    if not resume:
        start_over(encoder_work, gpt_work)
    prompts = read_prompts(whole)
    reader = train_moving_projection(prompts.encoder, encoder_work, config.dim, config.frames, resume=resume)
    encode = CaptionEncoder(prompts.encoder, prompts.tokenizer, LONGEST)
    gpt, figures = train_video_codes(recipe, read_vq(vq), encode, gpt_work, resume, device, reader.projection)
    write_transformer(gpt.cpu(), out)
    pipe = read_video_codes(out, vq, whole)
    model = pipe.model
    most = recipe.batch * recipe.config.frames // recipe.short
    facts = {"scene_seeds": [FIRST_SEED, FIRST_SEED + recipe.steps * most], "model_seed": recipe.seed, "steps": recipe.steps,
             "training": rounded(figures),
             "held_out": rounded(held_out_videos(model.transformer, model.vq, model.captions)),
             "evaluation": drawn_agreement(pipe, measured)}  # fmt: skip
    data = "moving scenes of mmspec.zoo.world, each frame at half its side and tokenised by the zoo's VQ"
    return write_card(out, recipe.name, model.transformer, data, **facts)


def drawn_agreement(pipe: LlamaGenPipeline, count: int, batch: int = 8) -> dict[str, float]:
    """How much of what held-out prompts name is in the videos drawn for them, and in rendered ones; see `agreement`.

    Videos are drawn by coupled Jacobi decoding, whose law is that of plain decoding. Codes a pass are counted on the way.
    """
    frames = pipe.model.geometry.frames
    scenes = [sample_moving(DRAWN + index) for index in range(count)]
    prompts = [moving_prompt(scene, 0, frames) for scene in scenes]
    drawn, codes, passes = [], 0, 0
    for first in range(0, count, batch):
        asked = prompts[first : first + batch]
        out = pipe(asked, decoding=SCD(64), seed=[first + i for i in range(len(asked))])
        drawn += [_doubled(video) for video in out.arrays()]
        codes, passes = codes + out.tokens.numel(), passes + out.stats.row_passes
    named = [named_movers(prompt) for prompt in prompts]
    rendered = [_doubled(low_res(render_frames(scene, frames))) for scene in scenes]
    marks = (np.mean([agreement(*pair) for pair in zip(each, named, strict=True)]) for each in (drawn, rendered))
    found = dict(zip(("agreement", "agreement_rendered"), map(float, marks), strict=True))
    return rounded({**found, "codes_a_pass": codes / passes})


def _doubled(frames: np.ndarray) -> np.ndarray:
    """At the side that `agreement` knows speeds of."""
    return frames.repeat(2, 1).repeat(2, 2)
