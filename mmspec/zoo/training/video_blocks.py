"""Training of the zoo's block-causal video models on latents of moving clips: flows of few steps behind clean context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.video.generation.flow_map import FlowMap
from mmspec.video.generation.schedule import TRAINING_STEPS
from mmspec.video.text import Encode
from mmspec.video.wan.config import WanConfig
from mmspec.video.wan.transformer import CausalWan

from ..world.moving_prompts import moving_prompt
from .clip_sets import PLAN, ClipSet, Kind, Member, blocks_of, pixel_frames
from .loop import Plan, train
from .starts import marked
from .teacher_forcing import Segment, forced_flow

TURNS: tuple[Kind, ...] = ("whole", "whole", "cuts", "whole")  # which set a step takes
TOLD = pixel_frames(7)  # frames of whose bounces prompts may tell


@dataclass(frozen=True, slots=True)
class BlockRecipe:
    """Everything that decides a block-causal video model.

    clips: of each fixed set.   batch: clips of four blocks a step.   starts: first blocks more a step, which say little about
    each other and are most of what a prompt decides.
    few: share of blocks whose noise is that of one of the few steps of `sampler`; the others' is anywhere between.
    context_noise: most that is added to clean context, which is never as clean when it was drawn.
    own_after: share of the steps after which `own` of the context blocks are the model's own predictions.
    """

    name: str
    config: WanConfig
    steps: int
    lr: float = 1e-3
    batch: int = 4
    starts: int = 8
    clips: tuple[tuple[Kind, int], ...] = (("whole", 6144), ("cuts", 2048), ("starts", 16384))
    sampler: FlowMap = FlowMap(4, until=False)
    few: float = 0.8
    context_noise: float = 0.1
    own: float = 0.5
    own_after: float = 0.6
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"whole": self.batch, "cuts": self.batch, "starts": self.starts}
        if min(self.steps, self.batch, self.starts) < 1 or any(count < least[kind] for kind, count in self.clips):
            raise ValueError(
                f"BlockRecipe: expected positive counts and a batch of clips or more, got {self}; change them"
            )

    @property
    def folder(self) -> str:
        """Of the state, in the work folder."""
        return self.name.replace("/", "_")

    def plan(self) -> Plan:
        """Its schedule for the training loop."""
        return Plan(self.steps, self.lr, warmup=min(100, self.steps // 2), weight_decay=0.02)

    def draws(self, step: int) -> torch.Generator:
        """What a step draws its noise and times with."""
        return torch.Generator().manual_seed((self.seed << 32) + step)

    def levels(self, blocks: tuple[int, int], drawn: torch.Generator) -> Tensor:
        """float32 [B, blocks], the share of noise of each block: of the sampler's steps, or between them and 0."""
        steps = self.sampler.levels[:-1].float()
        few = steps[torch.randint(len(steps), blocks, generator=drawn)]
        flat = torch.rand(blocks, generator=drawn)
        free = self.sampler.shift * flat / (1 + (self.sampler.shift - 1) * flat)
        return torch.where(torch.rand(blocks, generator=drawn) < self.few, few, free)


def new_model(config: WanConfig, seed: int) -> CausalWan:
    """An untrained model, whose flow is 0."""
    torch.manual_seed(seed)
    model = CausalWan(config)
    nn.init.zeros_(model.proj_out.weight)
    nn.init.zeros_(model.proj_out.bias)
    return model


def segments_of(members: Sequence[Member], kind: Kind, encode: Encode, seed: int) -> list[Segment]:
    """What the prompts of these clips are, from which block to which."""
    ends = [*(block for block, _ in members[0].scenes[1:]), blocks_of(kind)]
    texts = [
        [moving_prompt(scenes[i][1], seed, TOLD) for scenes in (one.scenes for one in members)]
        for i in range(len(ends))
    ]
    firsts = [block for block, _ in members[0].scenes]
    return [(first, last, encode(text)) for first, last, text in zip(firsts, ends, texts, strict=True)]


def coupled(members: Sequence[Member], shape: torch.Size, drawn: torch.Generator) -> Tensor:
    """Noise float32 [B, C, F, 8, 8]: white, and where a scene begins, in the channels that have placed its objects, theirs."""
    noise = torch.randn(shape, generator=drawn)
    for row, one in enumerate(members):
        for (block, scene), own in zip(one.scenes, one.noise, strict=True):
            frames = slice(PLAN.start(block), PLAN.start(block) + PLAN.frames(block))
            channels = marked(scene, shape[1])
            noise[row, channels, frames] = own[channels]
    return noise


def block_loss(
    model: CausalWan, clips: tuple[list[Member], Tensor], starts: tuple[list[Member], Tensor], recipe: BlockRecipe,
    encode: Encode, step: int, device: str = "cpu",
) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
    """Mean squared error of the flow, noise - clean, of all blocks of the clips and of the first blocks beside them."""
    drawn, losses, counts = recipe.draws(step), [], []
    kind: Kind = "cuts" if len(clips[0][0].scenes) > 1 else "whole"
    for (members, clean), which in ((clips, kind), (starts, "starts")):
        noise = coupled(members, clean.shape, drawn)
        level = recipe.levels((len(clean), blocks_of(which)), drawn).repeat_interleave(PLAN.size, 1)
        sigma = level[:, None, :, None, None]
        noisy = (1 - sigma) * clean + sigma * noise
        context = clean + recipe.context_noise * torch.rand(len(clean), 1, 1, 1, 1, generator=drawn) * torch.randn(
            clean.shape, generator=drawn)  # fmt: skip
        given = [one.to(device) for one in (context, noisy, level * TRAINING_STEPS)]
        segments = [(first, last, text.to(device)) for first, last, text in segments_of(members, which, encode, step)]
        if which != "starts" and step >= recipe.own_after * recipe.steps:
            given[0] = _own_context(model, given, segments, clean.to(device), noise.to(device), recipe, drawn)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            flow = forced_flow(model, *given, segments, PLAN.size)
        each = (flow.float() - (noise - clean).to(device)).square().mean((1, 3, 4))  # [B, F]
        losses.append(each.unflatten(1, (-1, PLAN.size)).mean(2))
        counts.append(losses[-1].numel())
    whole = torch.cat([one.flatten() for one in losses]).mean()
    notes = {"first": float(losses[1].detach().mean()), "later": float(losses[0][:, -1].detach().mean())}
    return whole, notes


@torch.no_grad()
def _own_context(
    model: CausalWan, given: Sequence[Tensor], segments: Sequence[Segment], clean: Tensor, noise: Tensor,
    recipe: BlockRecipe, drawn: torch.Generator,
) -> Tensor:  # fmt: skip
    """The context with some of its blocks as the model itself predicts them, at the last of the few steps.

    That is scheduled sampling in one pass more ("Parallel Scheduled Sampling"): what is drawn later stands behind what the
    model drew, and must not make more of its faults.
    """
    context, _, times = given
    last = float(recipe.sampler.levels[-2])
    noisy = (1 - last) * clean + last * noise
    with torch.autocast(context.device.type, torch.bfloat16):
        flow = forced_flow(model, context, noisy, torch.full_like(times, last * TRAINING_STEPS), segments, PLAN.size)
    made = noisy - last * flow.float()
    blocks = torch.rand(len(clean), clean.shape[2] // PLAN.size, generator=drawn) < recipe.own
    return torch.where(blocks.repeat_interleave(PLAN.size, 1)[:, None, :, None, None].to(context.device), made, context)


def train_blocks(
    recipe: BlockRecipe, sets: dict[Kind, ClipSet], encode: Encode, folder: Path, resume: bool = True, device: str = "cpu",
) -> tuple[CausalWan, dict[str, float]]:  # fmt: skip
    """Trains a model (bf16 autocast); returns it and its last means: errors of all blocks, of first and of last ones.

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
