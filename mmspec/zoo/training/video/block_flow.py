"""The objective of block-causal video models: the flow of every block behind clean context, at few noise levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.video.chunk_cache import AttentionSpan
from mmspec.video.generation import TRAINING_STEPS, FlowMap
from mmspec.video.wan.config import WanConfig
from mmspec.video.wan.transformer import CausalWan
from mmspec.zoo.training.loop import ZooRecipe, autocast
from mmspec.zoo.training.video.clips import PLAN

Segment = tuple[int, int, Tensor]  # first block, the one after the last, prompt states [B, L, d]
Layers = list[tuple[Tensor, Tensor]]


class CleanContext:
    """What `ChunkCache` is to generation, for training: one pass over the blocks from `first` on.

    layers: keys and values [B, heads, S, dim] of clean blocks from 0 on, layer by layer. A clean pass adds its own, which get
    gradients; of a noisy pass nothing stays, and each of its blocks sees the clean ones before it and itself, as it does when
    it is drawn.   window: frames a block sees, its own included; -1 for all.
    """

    def __init__(self, size: int, window: int, first: int, layers: Layers, clean: bool):
        self.size, self.first, self.layers, self.clean = size, first, layers, clean
        self.reach = window // size if window > 0 else None

    @property
    def frames(self) -> int:
        """Position of the pass's first frame."""
        return self.first * self.size

    def begin(self, sizes: Sequence[int]) -> None:
        if set(sizes) != {self.size}:
            raise ValueError(f"sizes: expected blocks of {self.size} frames, got {list(sizes)}; cut the clip so")
        self.blocks = len(sizes)

    def write(self, layer: int, key: Tensor, value: Tensor) -> list[AttentionSpan]:
        """One layer's keys and values [B, heads, S, dim] of the pass; what each of its blocks attends to."""
        tokens, own = key.shape[2] // self.blocks, (key, value)
        known = self.layers[layer] if layer < len(self.layers) else tuple(one[:, :, :0] for one in own)
        if self.clean:
            known = tuple(torch.cat(pair, 2) for pair in zip(known, own, strict=True))
            self.layers[layer : layer + 1] = [known]
        spans = []
        for number in range(self.blocks):
            block, cut = self.first + number, slice(number * tokens, (number + 1) * tokens)
            oldest = 0 if self.reach is None else max(0, block + 1 - self.reach)
            seen = [torch.cat((one[:, :, oldest * tokens : block * tokens], mine[:, :, cut]), 2)
                    for one, mine in zip(known, own, strict=True)]  # fmt: skip
            spans.append(AttentionSpan(cut.start, cut.stop, *seen))
        return spans


def forced_flow(
    model: CausalWan, context: Tensor, noisy: Tensor, times: Tensor, segments: Sequence[Segment], size: int
) -> Tensor:
    """The flow [B, C, F, H, W] of every block of `noisy`, each drawn behind the blocks of `context` before it.

    context, noisy: float [B, C, F, H, W].   times: float [B, F] of the noisy frames; those of the context are 0.
    segments: which prompt holds for which blocks; together all of them, in order.   size: frames of a block.
    """
    layers: Layers = []
    window, end = model.config.local_attn_size, context.shape[2] // size
    read = [(first, last, model.read(text)) for first, last, text in segments]

    def passed(latents: Tensor, time: Tensor, first: int, last: int, prompt: object, clean: bool) -> Tensor:
        cut, cache = slice(first * size, last * size), CleanContext(size, window, first, layers, clean)
        return model(latents[:, :, cut], time[:, cut], prompt, cache, (size,) * (last - first))

    for first, last, prompt in read:
        if first < (last := min(last, end - 1)):  # nothing attends to the last block
            passed(context, torch.zeros_like(times), first, last, prompt, True)
    return torch.cat([passed(noisy, times, first, last, prompt, False) for first, last, prompt in read], 2)


@dataclass(frozen=True, slots=True)
class FlowRecipe(ZooRecipe):
    """What decides how a block-causal video model learns.

    batch: clips of four blocks a step.
    few: share of blocks whose noise is that of one of the few steps of `sampler`; the others' is anywhere between.
    context_noise: most that is added to clean context, which is never as clean when it was drawn.
    own_after: share of a run's steps after which `own` of the context blocks are the model's own predictions.
    objects: how much more a latent counts that an object fills than one of the background, which is most of every frame.
    again: step from which on the schedule runs once more; 0 for never.
    """

    name: str
    config: WanConfig
    steps: int
    lr: float = 1e-3
    batch: int = 3
    sampler: FlowMap = FlowMap(4, until=False)
    few: float = 0.8
    context_noise: float = 0.1
    own: float = 0.5
    own_after: float = 0.6
    objects: float = 4.0
    seed: int = 0
    again: int = 0

    def levels(self, blocks: tuple[int, int], drawn: torch.Generator) -> Tensor:
        """float32 [B, blocks], the share of noise of each block: of the sampler's steps, or between them and 0."""
        steps = self.sampler.levels[:-1].float()
        few = steps[torch.randint(len(steps), blocks, generator=drawn)]
        flat = torch.rand(blocks, generator=drawn)
        free = self.sampler.shift * flat / (1 + (self.sampler.shift - 1) * flat)
        return torch.where(torch.rand(blocks, generator=drawn) < self.few, few, free)


@dataclass(frozen=True, slots=True)
class BlockClips:
    """Clips of whole blocks, to be learnt from.

    clean: float32 [B, C, F, 8, 8].   noise: in its shape, what each block starts from.   filled: float32 [B, F, 8, 8], which
    share of a latent is an object's.   segments: the prompts.
    """

    clean: Tensor
    noise: Tensor
    filled: Tensor
    segments: list[Segment]

    @property
    def count(self) -> int:
        """Blocks of a clip."""
        return self.clean.shape[2] // PLAN.size

    def to(self, device: str) -> BlockClips:
        segments = [(first, last, text.to(device)) for first, last, text in self.segments]
        return BlockClips(self.clean.to(device), self.noise.to(device), self.filled.to(device), segments)


def new_model(config: WanConfig, seed: int) -> CausalWan:
    """An untrained model, whose flow is 0."""
    torch.manual_seed(seed)
    model = CausalWan(config)
    nn.init.zeros_(model.proj_out.weight)
    nn.init.zeros_(model.proj_out.bias)
    return model


def flow_errors(
    model: CausalWan, blocks: BlockClips, recipe: FlowRecipe, drawn: torch.Generator, step: int, device: str = "cpu"
) -> Tensor:
    """float32 [B, blocks], the mean squared error of every block's flow, noise - clean, in which objects count more."""
    shape = blocks.clean.shape
    level = recipe.levels((shape[0], blocks.count), drawn).repeat_interleave(PLAN.size, 1).to(device)
    spread = recipe.context_noise * torch.rand(shape[0], 1, 1, 1, 1, generator=drawn)
    stray = (spread * torch.randn(shape, generator=drawn)).to(device)
    own = (torch.rand(shape[0], blocks.count, generator=drawn) < recipe.own).repeat_interleave(PLAN.size, 1).to(device)
    blocks = blocks.to(device)
    clean, noise, context = blocks.clean, blocks.noise, blocks.clean + stray
    if blocks.count > 1 and recipe.fraction(step) >= recipe.own_after:
        guessed = _predict_blocks(model, context, blocks, recipe)
        context = torch.where(own[:, None, :, None, None], guessed, context)
    sigma = level[:, None, :, None, None]
    flow = _flow(model, context, (1 - sigma) * clean + sigma * noise, level, blocks.segments)
    weight = 1 + recipe.objects * blocks.filled
    weight = weight / weight.mean((1, 2, 3), keepdim=True)
    each = (flow - (noise - clean)).square().mean(1)  # [B, F, 8, 8]
    return rearrange((each * weight).mean((2, 3)), "b (block f) -> b block f", f=PLAN.size).mean(2)


@torch.no_grad()
def _predict_blocks(model: CausalWan, context: Tensor, blocks: BlockClips, recipe: FlowRecipe) -> Tensor:
    """All blocks as the model itself predicts them at the last of the few steps, [B, C, F, H, W].

    Behind these for context, later blocks are trained on what they will stand behind: scheduled sampling in one pass more
    ("Parallel Scheduled Sampling").
    """
    last = float(recipe.sampler.levels[-2])
    noisy = (1 - last) * blocks.clean + last * blocks.noise
    level = noisy.new_full((len(noisy), noisy.shape[2]), last)
    return noisy - last * _flow(model, context, noisy, level, blocks.segments)


def _flow(model: CausalWan, context: Tensor, noisy: Tensor, level: Tensor, segments: Sequence[Segment]) -> Tensor:
    with autocast(noisy.device):
        return forced_flow(model, context, noisy, level * TRAINING_STEPS, segments, PLAN.size).float()
