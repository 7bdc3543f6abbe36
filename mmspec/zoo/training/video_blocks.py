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
from .cover import cover
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
    objects: how much more a latent counts that an object fills than one of the background, which is most of every frame.
    again: as in `Plan`.
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
    objects: float = 4.0
    seed: int = 0
    again: int = 0

    def __post_init__(self) -> None:
        least = {"whole": self.batch, "cuts": self.batch, "starts": self.starts}
        short = any(count < least[kind] for kind, count in self.clips)
        if min(self.steps, self.batch, self.starts) < 1 or short or self.objects < 0:
            raise ValueError(
                f"BlockRecipe: expected positive counts and a batch of clips or more, got {self}; change them"
            )

    @property
    def folder(self) -> str:
        """Of the state, in the work folder."""
        return self.name.replace("/", "_")

    def plan(self) -> Plan:
        """Its schedule for the training loop."""
        return Plan(self.steps, self.lr, warmup=min(100, self.steps // 2), weight_decay=0.02, again=self.again)

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


def block_loss(
    model: CausalWan, clips: tuple[list[Member], Tensor], starts: tuple[list[Member], Tensor], recipe: BlockRecipe,
    encode: Encode, step: int, device: str = "cpu",
) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
    """Squared error of the flow, noise - clean, of all blocks of the clips and of the first blocks beside them: a mean in
    which objects count more."""
    kind: Kind = "cuts" if len(clips[0][0].scenes) > 1 else "whole"
    drawn = recipe.draws(step)
    all_blocks = _errors(model, *clips, kind, recipe, encode, drawn, step, device)
    firsts = _errors(model, *starts, "starts", recipe, encode, drawn, step, device)
    loss = torch.cat((all_blocks.flatten(), firsts.flatten())).mean()
    return loss, {"first": float(firsts.detach().mean()), "later": float(all_blocks[:, -1].detach().mean())}


def _errors(
    model: CausalWan, members: list[Member], clean: Tensor, kind: Kind, recipe: BlockRecipe, encode: Encode,
    drawn: torch.Generator, step: int, device: str,
) -> Tensor:  # fmt: skip
    """float32 [B, blocks], the mean squared error of every block's flow; latents that objects fill count more."""
    noise = coupled(members, clean.shape, drawn)
    level = recipe.levels((len(clean), blocks_of(kind)), drawn).repeat_interleave(PLAN.size, 1)
    spread = recipe.context_noise * torch.rand(len(clean), 1, 1, 1, 1, generator=drawn)
    context = clean + spread * torch.randn(clean.shape, generator=drawn)
    weight = 1 + recipe.objects * cover(members, kind)
    weight = weight / weight.mean((1, 2, 3), keepdim=True)
    clean, noise, context, level, weight = (one.to(device) for one in (clean, noise, context, level, weight))
    segments = [(first, last, text.to(device)) for first, last, text in segments_of(members, kind, encode, step)]
    if kind != "starts" and step >= recipe.own_after * recipe.steps:
        own = torch.rand(len(clean), blocks_of(kind), generator=drawn) < recipe.own
        chosen = own.repeat_interleave(PLAN.size, 1)[:, None, :, None, None].to(device)
        context = torch.where(chosen, _predicted(model, context, clean, noise, segments, recipe), context)
    sigma = level[:, None, :, None, None]
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        flow = forced_flow(
            model, context, (1 - sigma) * clean + sigma * noise, level * TRAINING_STEPS, segments, PLAN.size
        )
    each = (flow.float() - (noise - clean)).square().mean(1)  # [B, F, 8, 8]
    return (each * weight).mean((2, 3)).unflatten(1, (-1, PLAN.size)).mean(2)


@torch.no_grad()
def _predicted(
    model: CausalWan, context: Tensor, clean: Tensor, noise: Tensor, segments: Sequence[Segment], recipe: BlockRecipe
) -> Tensor:
    """All blocks as the model itself predicts them at the last of the few steps, [B, C, F, H, W].

    Behind these for context, later blocks are trained on what they will stand behind: scheduled sampling in one pass more
    ("Parallel Scheduled Sampling").
    """
    last = float(recipe.sampler.levels[-2])
    noisy, times = (
        (1 - last) * clean + last * noise,
        clean.new_full((len(clean), clean.shape[2]), last * TRAINING_STEPS),
    )
    with torch.autocast(clean.device.type, torch.bfloat16):
        flow = forced_flow(model, context, noisy, times, segments, PLAN.size)
    return noisy - last * flow.float()


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
