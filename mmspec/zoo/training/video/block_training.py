"""Training of the zoo's block-causal video target on latents of moving clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.video.prompt_encoder import Encode
from mmspec.video.wan.transformer import CausalWan
from mmspec.zoo.training.video.block_flow import BlockClips, FlowRecipe, Segment, flow_errors, new_model
from mmspec.zoo.training.video.clips import (
    PLAN,
    PROMPT_FRAMES,
    SEEDS,
    ClipSet,
    Kind,
    TrainingClip,
    blocks_of,
    coupled_channels,
)
from mmspec.zoo.training.video.object_reading import (
    ObjectReader,
    middle_states,
    object_coverage,
    object_labels,
    of_last_passes,
)
from mmspec.zoo.world.video_prompts import video_prompt

TURNS: tuple[Kind, ...] = ("whole", "whole", "cuts", "whole")  # the sets of consecutive steps


@dataclass(frozen=True, slots=True)
class BlockRecipe(FlowRecipe):
    data = "moving scenes of mmspec.zoo.world as latents of the zoo's video/vae"
    starts: int = 12  # additional first blocks per step, about which a prompt decides most; nearly independent
    reading: float = 0.1  # initial weight of the heads' loss in the second run
    reading_share: float = 0.7  # share of the second run over which it falls to 0
    clips: tuple[tuple[Kind, int], ...] = (("whole", 4096), ("cuts", 1024), ("starts", 12288))

    def __post_init__(self) -> None:
        least = {"whole": self.batch, "cuts": self.batch, "starts": self.starts}
        short = any(count < least[kind] for kind, count in self.clips)
        right = min(self.steps, self.batch, self.starts) >= 1 and not short and self.objects >= 0
        self.expect(right, "positive counts and a batch of clips or more")

    def seeds(self) -> dict[str, Any]:
        return {"scene_seeds": {kind: [SEEDS[kind], SEEDS[kind] + 2 * count] for kind, count in self.clips}}

    def reads(self, step: int) -> float:
        return self.reading * max(1 - self.fraction(step) / self.reading_share, 0.0) if 0 < self.again <= step else 0.0


def segments_of(members: Sequence[TrainingClip], kind: Kind, encode: Encode, seed: int) -> list[Segment]:
    """Return the prompt states of these clips as (first block, end block, states)."""
    firsts = [block for block, _ in members[0].scenes]
    segments = []
    for number, (first, last) in enumerate(zip(firsts, [*firsts[1:], blocks_of(kind)], strict=True)):
        texts = [video_prompt(member.scenes[number][1], seed, PROMPT_FRAMES) for member in members]
        segments.append((first, last, encode(texts)))
    return segments


def coupled_noise(members: Sequence[TrainingClip], shape: torch.Size, drawn: torch.Generator) -> Tensor:
    """Return noise float32 [B, C, F, 8, 8]: white, except for the noise that placed a scene's objects, in its channels."""
    noise = torch.randn(shape, generator=drawn)
    for row, member in enumerate(members):
        for (block, scene), own in zip(member.scenes, member.noise, strict=True):
            frames = slice(PLAN.start(block), PLAN.start(block) + PLAN.frames(block))
            channels = coupled_channels(scene, shape[1])
            noise[row, channels, frames] = own[channels]
    return noise


def blocks_of_members(
    members: list[TrainingClip], clean: Tensor, kind: Kind, encode: Encode, drawn: torch.Generator, seed: int
) -> BlockClips:
    return BlockClips(
        clean,
        coupled_noise(members, clean.shape, drawn),
        object_coverage(members, kind),
        segments_of(members, kind, encode, seed),
    )


def block_loss(
    model: CausalWan,
    clips: tuple[list[TrainingClip], Tensor],
    starts: tuple[list[TrainingClip], Tensor],
    recipe: BlockRecipe,
    encode: Encode,
    step: int,
    device: str = "cpu",
    reader: ObjectReader | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return the flow error of clips and of additional first blocks, each with latents float32 [B, C, F, 8, 8], plus
    the loss of the heads."""
    kind: Kind = "cuts" if len(clips[0][0].scenes) > 1 else "whole"
    drawn, share, parts, read = recipe.draws(step), recipe.reads(step), [], []
    for some, of in ((clips, kind), (starts, "starts")):
        blocks = blocks_of_members(*some, of, encode, drawn, step)
        with middle_states(model) as seen:
            parts.append(flow_errors(model, blocks, recipe, drawn, step, device))
        if reader is not None and share:
            states = of_last_passes(seen, len(blocks.segments))
            read.append(reader.loss(states, *object_labels(some[0], of, reader.patch)))
    loss = torch.cat([errors.flatten() for errors in parts]).mean()
    notes = {"first": float(parts[1].detach().mean()), "later": float(parts[0][:, -1].detach().mean())}
    if reader is not None:
        loss = loss + share * sum(missed for missed, _ in read) / 2
        notes["looks"] = read[1][1] if read else 0.0
    return loss, notes


def train_blocks(
    recipe: BlockRecipe,
    sets: dict[Kind, ClipSet],
    encode: Encode,
    folder: Path,
    resume: bool = True,
    device: str = "cpu",
) -> tuple[CausalWan, dict[str, float]]:
    """Return the model, and its last mean errors: of all blocks, of first blocks and of last blocks."""
    model = new_model(recipe.config, recipe.seed).to(device).train()
    reader = ObjectReader(recipe.config.dim, recipe.config.patch_size[1]).to(device)
    turns = {kind: TURNS.count(kind) for kind in set(TURNS)}

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        turn, place = divmod(step, len(TURNS))
        kind = TURNS[place]
        own = turn * turns[kind] + TURNS[:place].count(kind)
        clips, starts = sets[kind].batch(own, recipe.batch), sets["starts"].batch(step, recipe.starts)
        return block_loss(model, clips, starts, recipe, encode, step, device, reader)

    module = nn.ModuleDict({"model": model, "reader": reader})
    figures = recipe.train(module, loss_of, folder, resume)
    return model.eval().requires_grad_(False), figures
