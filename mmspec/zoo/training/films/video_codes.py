"""Training of the zoo's model of video codes, on moving scenes that are rendered and tokenised frame by frame as it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.imagegen.llamagen.text import CaptionEncoder
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQModel

from ...architectures.auxiliary_heads import WithAuxiliaryHeads
from ...architectures.pixels import to_pixels
from ...world.moving import HELD_OUT, LOOKS, MovingScene, sample_moving
from ...world.moving_frames import render_frames
from ...world.moving_prompts import moving_prompt
from ...world.pictures import low_res
from ..loop import Plan, train
from ..pictures.llamagen import DROP, code_loss
from ..precision import quick
from .moving_facts import HEADS, look_labels, moving_reading_loss

FIRST_SEED = 1 << 30


@dataclass(frozen=True, slots=True)
class VideoRecipe:
    """Everything that decides a zoo model of video codes; fields as in `GptRecipe`, frames are the config's.

    again: step from which on the schedule runs once more, guidance by heads and weights with it.
    short: frames of a video in the `short_steps` behind it, as many more of which cost as much: what prompts ask for is learnt
    from many scenes, and then how it moves.
    """

    name: str
    config: GPTConfig
    steps: int
    lr: float = 2e-3
    batch: int = 8
    reading: float = 0.3
    object_weight: float = 4.0
    guided_share: float = 0.7
    seed: int = 0
    again: int = 0
    short: int = 2
    short_steps: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.short) < 1 or self.short > self.config.frames:
            raise ValueError(
                f"VideoRecipe: expected positive counts and short videos no longer than others, got {self}; change them"
            )

    def plan(self) -> Plan:
        """Its schedule for the training loop."""
        return Plan(self.steps, self.lr, warmup=min(100, self.steps // 2), weight_decay=0.05, again=self.again)

    def frames(self, step: int) -> int:
        """Of the videos of a step."""
        return self.short if 0 <= step - self.again < self.short_steps else self.config.frames

    def scenes(self, step: int) -> list[MovingScene]:
        """The scenes of a training step."""
        count = self.batch * self.config.frames // self.frames(step)
        return [sample_moving(FIRST_SEED + step * count + i) for i in range(count)]

    def guided(self, step: int) -> float:
        """How much heads and the weight of objects count at a step."""
        first, last = (self.again, self.steps) if step >= self.again else (0, self.again)
        return max(1 - (step - first) / (self.guided_share * (last - first)), 0.0)


@torch.no_grad()
def video_codes(vq: VQModel, scenes: list[MovingScene], frames: int) -> Tensor:
    """The tokenizer's codes of rendered scenes at half their side, each frame on its own, int64 [B, frames * 64]."""
    pixels = to_pixels(low_res(np.concatenate([render_frames(scene, frames) for scene in scenes])))
    device = vq.quantize.embedding.weight.device
    with quick(device):
        return vq.encode(pixels.to(device))[1].view(len(scenes), -1)


def train_video_codes(
    recipe: VideoRecipe, vq: VQModel, encode: CaptionEncoder, folder: Path, resume: bool = True, device: str = "cpu",
    projection: nn.Module | None = None,
) -> tuple[Transformer, dict[str, float]]:  # fmt: skip
    """Trains a transformer; returns it and the means of its last logged steps: loss and top-1 probability of the codes.

    projection: what the transformer's own caption projection starts as. The heads' loss and the weight of the codes of
    objects fade over `guided_share` of the steps of a run: the last loss is of codes alone, all of one weight.
    """
    torch.manual_seed(recipe.seed)
    gpt, vq = Transformer(recipe.config), vq.to(device)
    if projection is not None:
        gpt.cls_embedding.cap_proj.load_state_dict(projection.state_dict())
    model = WithAuxiliaryHeads(gpt, HEADS, LOOKS).to(device)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        scenes, frames, share = recipe.scenes(step), recipe.frames(step), recipe.guided(step)
        condition, mask = encode([moving_prompt(scene, step, frames) for scene in scenes])
        codes = video_codes(vq, scenes, frames)
        drop = torch.rand(len(scenes), generator=torch.Generator().manual_seed(step)) < DROP
        with quick(device):
            logits, states = model(condition.to(device), codes, mask.to(device), drop.to(device))
            reading = torch.zeros((), device=device)
            if share:
                reading = moving_reading_loss(model, states, scenes, frames, drop, step)
        near = look_labels(scenes, frames, recipe.config.grid, border=1) < LOOKS
        weight = 1 + (recipe.object_weight - 1) * share * near.to(device)
        loss, notes = code_loss(logits, codes, weight)
        return loss + recipe.reading * share * reading, {**notes, "reading": float(reading.detach())}

    return gpt, train(model, loss_of, recipe.plan(), folder, recipe.name, resume)


@torch.no_grad()
def held_out_videos(gpt: Transformer, vq: VQModel, encode: CaptionEncoder, count: int = 16) -> dict[str, float]:
    """Loss and mean top-1 probability of the codes of scenes that no training sees."""
    frames = gpt.config.frames
    scenes = [sample_moving(HELD_OUT + index) for index in range(count)]
    losses = []
    for scene in scenes:  # one by one: the logits of a video are many
        condition, mask = encode([moving_prompt(scene, 0, frames)])
        codes = video_codes(vq, [scene], frames)
        loss, notes = code_loss(gpt.training_logits(condition, codes, mask), codes)
        losses.append((float(loss), notes["top1"]))
    loss, top1 = np.mean(losses, axis=0)
    return {"loss": float(loss), "top1": float(top1)}
