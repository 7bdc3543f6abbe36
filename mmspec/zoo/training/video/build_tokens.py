"""Build the zoo's model of video codes on moving scenes that are rendered and tokenised frame by frame."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.imagegen.jacobi import SJD
from mmspec.imagegen.llamagen.captions import CaptionEncoder
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQModel
from mmspec.zoo.architectures.caption_encoder import WIDTH
from mmspec.zoo.files.image import read_vq, write_transformer
from mmspec.zoo.files.video import read_prompts, read_video_codes
from mmspec.zoo.training.code_models import DROP, CodeRecipe, code_loss
from mmspec.zoo.training.facts import VIDEO_FACTS, VIDEO_HEADS, look_labels, train_video_prompt_projection
from mmspec.zoo.training.loop import autocast, start_over
from mmspec.zoo.world.image import low_res
from mmspec.zoo.world.pixels import to_pixels
from mmspec.zoo.world.tracking import agreement
from mmspec.zoo.world.video import HELD_OUT, LOOKS, VideoScene, render_frames, sample_video_scene
from mmspec.zoo.world.video_prompts import LONGEST, named_movers, video_prompt

FIRST_SEED = 1 << 30


@dataclass(frozen=True, slots=True)
class VideoRecipe(CodeRecipe):
    """More short videos fit a step, so the model learns objects from many scenes, and their motion afterwards."""

    data = "moving scenes of mmspec.zoo.world, each frame at half its side and tokenised by the zoo's VQ"
    batch: int = 8
    again: int = 0  # step at which schedule, heads and weights start a second time; 0 for never
    short: int = 2  # frames of a video in the `short_steps` after `again`
    short_steps: int = 0

    def __post_init__(self) -> None:
        right = 1 <= min(self.steps, self.batch, self.short) and self.short <= self.config.frames
        self.expect(right, "positive counts and short videos no longer than others")

    def seeds(self) -> dict[str, Any]:
        most = self.batch * self.config.frames // self.short
        return {"scene_seeds": [FIRST_SEED, FIRST_SEED + self.steps * most]}

    def frames(self, step: int) -> int:
        return self.short if 0 <= step - self.again < self.short_steps else self.config.frames

    def scenes(self, step: int) -> list[VideoScene]:
        count = self.batch * self.config.frames // self.frames(step)
        return [sample_video_scene(FIRST_SEED + step * count + i) for i in range(count)]


@torch.no_grad()
def video_codes(vq: VQModel, scenes: list[VideoScene], frames: int) -> Tensor:
    """Return the codes of rendered scenes at half their side, tokenised frame by frame, int64 [B, frames * 64]."""
    pixels = to_pixels(low_res(np.concatenate([render_frames(scene, frames) for scene in scenes])))
    device = vq.quantize.embedding.weight.device
    with autocast(device):
        return vq.encode(pixels.to(device))[1].view(len(scenes), -1)


def train_video_codes(
    recipe: VideoRecipe,
    vq: VQModel,
    encode: CaptionEncoder,
    folder: Path,
    resume: bool = True,
    device: str = "cpu",
    projection: nn.Module | None = None,
) -> tuple[Transformer, dict[str, float]]:
    """Return the transformer, and its last figures; the last loss is that of the codes alone, equally weighted."""
    model, vq = recipe.new_model(projection, VIDEO_HEADS, LOOKS).to(device), vq.to(device)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        scenes, frames, share = recipe.scenes(step), recipe.frames(step), recipe.guided(step)
        condition, mask = encode([video_prompt(scene, step, frames) for scene in scenes])
        codes = video_codes(vq, scenes, frames)
        drop = torch.rand(len(scenes), generator=torch.Generator().manual_seed(step)) < DROP
        with autocast(device):
            logits, states = model(condition.to(device), codes, mask.to(device), drop.to(device))
            reading = torch.zeros((), device=device)
            if share:
                looks = look_labels(scenes, frames, recipe.config.grid)
                reading = VIDEO_FACTS.reading_loss(model, states, scenes, looks, drop, step)
        near = look_labels(scenes, frames, recipe.config.grid, border=1) < LOOKS
        weight = 1 + (recipe.object_weight - 1) * share * near.to(device)
        loss, notes = code_loss(logits, codes, weight)
        return loss + recipe.reading * share * reading, {**notes, "reading": float(reading.detach())}

    return model.gpt, recipe.train(model, loss_of, folder, resume)


@torch.no_grad()
def held_out_videos(gpt: Transformer, vq: VQModel, encode: CaptionEncoder, count: int = 16) -> dict[str, float]:
    """Return loss and mean top-1 probability of the codes of held-out scenes."""
    frames = gpt.config.frames
    scenes = [sample_video_scene(HELD_OUT + index) for index in range(count)]
    losses = []
    for scene in scenes:  # one at a time, since the logits of a video are large
        condition, mask = encode([video_prompt(scene, 0, frames)])
        codes = video_codes(vq, [scene], frames)
        loss, notes = code_loss(gpt.training_logits(condition, codes, mask), codes)
        losses.append((float(loss), notes["top1"]))
    loss, top1 = np.mean(losses, axis=0)
    return {"loss": float(loss), "top1": float(top1)}


FRAMES = 8
CARD_SEED = HELD_OUT + (1 << 20)  # apart from the scenes of other figures


def recipe_of(steps: int = 6200, again: int = 3000, short_steps: int = 1500) -> VideoRecipe:
    """Return the recipe of 8 frames of 8x8 codes, 32x32 pixels; with 16x16 codes training would take four times as
    long. Of the 16 rotary pairs of a head, four encode time, six rows and six columns. No axis is longer than 8 steps,
    so the base is 100. With 10000 most pairs would hardly rotate, and attention to the same place in the previous frame
    would be learnt late."""
    config = GPTConfig(
        dim=128,
        n_layer=6,
        n_head=4,
        multiple_of=64,
        vocab_size=1024,
        block_size=64,
        model_type="t2i",
        cls_token_num=LONGEST,
        caption_dim=WIDTH,
        frames=FRAMES,
        time_pairs=4,
        rope_base=100,
    )
    return VideoRecipe("video/tokens", config, steps, again=again, short_steps=short_steps)


def build(
    out: Path,
    work: Path,
    images: Path,
    whole: Path,
    recipe: VideoRecipe,
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 32,
) -> dict[str, Any]:
    """Train a caption projection and a transformer over the tokenizer in `images` and the caption encoder in `whole`,
    and write the transformer in fp16 with a card."""
    config, encoder_work, gpt_work = recipe.config, work / f"{recipe.folder}_captions", work / recipe.folder
    if not resume:
        start_over(encoder_work, gpt_work)
    prompts = read_prompts(whole)
    reader = train_video_prompt_projection(prompts.encoder, encoder_work, config.dim, config.frames, resume=resume)
    encode = CaptionEncoder(prompts.encoder, prompts.tokenizer, LONGEST)
    gpt, figures = train_video_codes(
        recipe, read_vq(images / "vq"), encode, gpt_work, resume, device, reader.projection
    )
    write_transformer(gpt.cpu(), out)
    pipe = read_video_codes(out, images, whole)
    model = pipe.model
    measurements = {
        "held_out": held_out_videos(model.transformer, model.vq, model.captions),
        "evaluation": video_agreement(pipe, measured),
    }
    return recipe.card(out, model.transformer, figures, measurements)


def video_agreement(pipe: LlamaGenPipeline, count: int, batch: int = 8) -> dict[str, float]:
    """Return the mean `agreement` of generated and rendered videos with held-out prompts, and the codes per forward
    pass of coupled Jacobi decoding, which keeps the distribution of plain decoding."""
    frames = pipe.model.geometry.frames
    scenes = [sample_video_scene(CARD_SEED + index) for index in range(count)]
    prompts = [video_prompt(scene, 0, frames) for scene in scenes]
    drawn, codes, passes = [], 0, 0
    for first in range(0, count, batch):
        texts = prompts[first : first + batch]
        out = pipe(texts, decoding=SJD(64, coupling="gumbel"), seed=[first + i for i in range(len(texts))])
        drawn += [_doubled(video) for video in out.arrays()]
        codes, passes = codes + out.tokens.numel(), passes + out.stats.row_passes
    named = [named_movers(prompt) for prompt in prompts]
    rendered = [_doubled(low_res(render_frames(scene, frames))) for scene in scenes]
    marks = (np.mean([agreement(*pair) for pair in zip(each, named, strict=True)]) for each in (drawn, rendered))
    figures = dict(zip(("agreement", "agreement_rendered"), map(float, marks), strict=True))
    return {**figures, "codes_a_pass": codes / passes}


def _doubled(frames: np.ndarray) -> np.ndarray:
    """Return the frames at twice the side, for which `agreement` knows the speeds."""
    return frames.repeat(2, 1).repeat(2, 2)
