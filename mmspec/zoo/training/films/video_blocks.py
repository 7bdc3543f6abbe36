"""Training of the zoo's block-causal video target on latents of moving clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmspec.video.text import Encode
from mmspec.video.wan.transformer import CausalWan

from ...world.moving_prompts import moving_prompt
from ..loop import train
from .block_flow import Blocks, FlowRecipe, flow_errors, new_model
from .clip_sets import PLAN, TOLD, ClipSet, Kind, Member, blocks_of
from .cover import cover
from .starts import marked
from .teacher_forcing import Segment

TURNS: tuple[Kind, ...] = ("whole", "whole", "cuts", "whole")  # which set a step takes


@dataclass(frozen=True, slots=True)
class BlockRecipe(FlowRecipe):
    """Everything that decides a block-causal video model that learns from clips.

    starts: first blocks more a step, which say little about each other and are most of what a prompt decides.
    clips: of each fixed set.
    """

    starts: int = 12
    clips: tuple[tuple[Kind, int], ...] = (("whole", 4096), ("cuts", 1024), ("starts", 12288))

    def __post_init__(self) -> None:
        least = {"whole": self.batch, "cuts": self.batch, "starts": self.starts}
        short = any(count < least[kind] for kind, count in self.clips)
        if min(self.steps, self.batch, self.starts) < 1 or short or self.objects < 0:
            raise ValueError(
                f"BlockRecipe: expected positive counts and a batch of clips or more, got {self}; change them"
            )


def segments_of(members: Sequence[Member], kind: Kind, encode: Encode, seed: int) -> list[Segment]:
    """What the prompts of these clips are, from which block to which."""
    firsts = [block for block, _ in members[0].scenes]
    segments = []
    for number, (first, last) in enumerate(zip(firsts, [*firsts[1:], blocks_of(kind)], strict=True)):
        texts = [moving_prompt(one.scenes[number][1], seed, TOLD) for one in members]
        segments.append((first, last, encode(texts)))
    return segments


def coupled(members: Sequence[Member], shape: torch.Size, drawn: torch.Generator) -> Tensor:
    """Noise float32 [B, C, F, 8, 8]: white, and where a scene begins, in the channels that have placed its objects, theirs."""
    noise = torch.randn(shape, generator=drawn)
    for row, one in enumerate(members):
        for (block, scene), own in zip(one.scenes, one.noise, strict=True):
            frames = slice(PLAN.start(block), PLAN.start(block) + PLAN.frames(block))
            channels = marked(scene, shape[1])
            noise[row, channels, frames] = own[channels]
    return noise


def blocks_of_members(
    members: list[Member], clean: Tensor, kind: Kind, encode: Encode, drawn: torch.Generator, seed: int
) -> Blocks:
    """Clips of a set with noise, objects and prompts."""
    return Blocks(
        clean, coupled(members, clean.shape, drawn), cover(members, kind), segments_of(members, kind, encode, seed)
    )


def block_loss(
    model: CausalWan, clips: tuple[list[Member], Tensor], starts: tuple[list[Member], Tensor], recipe: BlockRecipe,
    encode: Encode, step: int, device: str = "cpu",
) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
    """Mean error of the flow of all blocks of the clips and of the first blocks beside them."""
    kind: Kind = "cuts" if len(clips[0][0].scenes) > 1 else "whole"
    drawn = recipe.draws(step)
    found = [
        flow_errors(model, blocks_of_members(*some, of, encode, drawn, step), recipe, drawn, step, device)
        for some, of in ((clips, kind), (starts, "starts"))
    ]
    loss = torch.cat([errors.flatten() for errors in found]).mean()
    return loss, {"first": float(found[1].detach().mean()), "later": float(found[0][:, -1].detach().mean())}


def train_blocks(
    recipe: BlockRecipe, sets: dict[Kind, ClipSet], encode: Encode, folder: Path, resume: bool = True, device: str = "cpu",
) -> tuple[CausalWan, dict[str, float]]:  # fmt: skip
    """Trains a model; returns it and its last means: errors of all blocks, of first and of last ones.

    sets: by kind.   State and log lie in `folder`.
    """
    model = new_model(recipe.config, recipe.seed).to(device).train()
    turns = {kind: TURNS.count(kind) for kind in set(TURNS)}

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        turn, place = divmod(step, len(TURNS))
        kind = TURNS[place]
        own = turn * turns[kind] + TURNS[:place].count(kind)
        clips, starts = sets[kind].batch(own, recipe.batch), sets["starts"].batch(step, recipe.starts)
        return block_loss(model, clips, starts, recipe, encode, step, device)

    figures = train(model, loss_of, recipe.plan(), folder, recipe.name, resume)
    return model.eval().requires_grad_(False), figures
