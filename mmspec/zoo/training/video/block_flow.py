"""The training objective of block-causal video models: the flow of blocks after clean context, at few noise levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.video.chunk_cache import AttentionSpan
from mmspec.video.generation import TRAINING_STEPS, FlowMap
from mmspec.video.wan.transformer import CausalWan
from mmspec.video.wan.wan_config import WanConfig
from mmspec.zoo.training.loop import ZooRecipe, autocast
from mmspec.zoo.training.video.clips import PLAN

Segment = tuple[int, int, Tensor]  # first block, end block, prompt states [B, L, d]
Layers = list[tuple[Tensor, Tensor]]


class CleanContext:
    """The training counterpart of `ChunkCache`: the context of a forward pass over the blocks from `first` on. A clean
    pass adds its keys and values [B, heads, S, dim] by layer, which receive gradients. A noisy pass adds nothing: each
    block attends to the clean blocks before it and to itself, as in generation. `window` are frames, the block's own
    included; -1 for all."""

    def __init__(self, size: int, window: int, first: int, layers: Layers, clean: bool):
        self.size, self.first, self.layers, self.clean = size, first, layers, clean
        self.reach = window // size if window > 0 else None

    @property
    def frames(self) -> int:
        """Position of the pass's first frame."""
        return self.first * self.size

    def begin(self, sizes: Sequence[int]) -> None:
        if set(sizes) != {self.size}:
            raise ValueError(
                f"sizes: expected blocks of {self.size} frames, got {list(sizes)}; cut the clip into such blocks"
            )
        self.blocks = len(sizes)

    def write(self, layer: int, key: Tensor, value: Tensor) -> list[AttentionSpan]:
        """Add the keys and values [B, heads, S, dim] of a layer, and return the attention span of each block."""
        tokens, own = key.shape[2] // self.blocks, (key, value)
        known = self.layers[layer] if layer < len(self.layers) else tuple(states[:, :, :0] for states in own)
        if self.clean:
            known = tuple(torch.cat(pair, 2) for pair in zip(known, own, strict=True))
            self.layers[layer : layer + 1] = [known]
        spans = []
        for number in range(self.blocks):
            block, cut = self.first + number, slice(number * tokens, (number + 1) * tokens)
            oldest = 0 if self.reach is None else max(0, block + 1 - self.reach)
            seen = [
                torch.cat((states[:, :, oldest * tokens : block * tokens], current[:, :, cut]), 2)
                for states, current in zip(known, own, strict=True)
            ]
            spans.append(AttentionSpan(cut.start, cut.stop, *seen))
        return spans


def forced_flow(
    model: CausalWan, context: Tensor, noisy: Tensor, times: Tensor, segments: Sequence[Segment], size: int
) -> Tensor:
    """Return the flow, float [B, C, F, H, W], of every block of `noisy` after the clean blocks of `context` before it,
    of the same shape. `times` [B, F] are those of the noisy frames; those of the context are 0."""
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
    name: str
    config: WanConfig
    steps: int
    lr: float = 1e-3
    batch: int = 3  # clips of four blocks per step
    sampler: FlowMap = FlowMap(4, until=False)
    few: float = 0.8  # share of blocks with the noise level of a sampler step; others have any level
    context_noise: float = 0.1  # most noise added to clean context, since generated context is never clean
    own: float = 0.5  # share of context blocks that are the model's own predictions
    own_after: float = 0.6  # share of a run's steps after which `own` applies
    objects: float = 4.0  # additional weight of object latents, since most of a frame is background
    seed: int = 0
    again: int = 0  # step at which the schedule starts a second time; 0 for never

    def levels(self, blocks: tuple[int, int], drawn: torch.Generator) -> Tensor:
        """Return float32 [B, blocks], the noise level of each block: that of a sampler step, or any."""
        steps = self.sampler.levels[:-1].float()
        few = steps[torch.randint(len(steps), blocks, generator=drawn)]
        flat = torch.rand(blocks, generator=drawn)
        free = self.sampler.shift * flat / (1 + (self.sampler.shift - 1) * flat)
        return torch.where(torch.rand(blocks, generator=drawn) < self.few, few, free)


@dataclass(frozen=True, slots=True)
class BlockClips:
    """Training clips of whole blocks."""

    clean: Tensor  # float32 [B, C, F, 8, 8]
    noise: Tensor  # float32 [B, C, F, 8, 8], the initial noise of each block
    filled: Tensor  # float32 [B, F, 8, 8], the share of a latent that objects fill
    segments: list[Segment]

    @property
    def count(self) -> int:
        return self.clean.shape[2] // PLAN.size

    def to(self, device: str) -> BlockClips:
        segments = [(first, last, text.to(device)) for first, last, text in self.segments]
        return BlockClips(self.clean.to(device), self.noise.to(device), self.filled.to(device), segments)


def new_model(config: WanConfig, seed: int) -> CausalWan:
    """Return an untrained model, whose flow is 0."""
    torch.manual_seed(seed)
    model = CausalWan(config)
    nn.init.zeros_(model.proj_out.weight)
    nn.init.zeros_(model.proj_out.bias)
    return model


def flow_errors(
    model: CausalWan, blocks: BlockClips, recipe: FlowRecipe, drawn: torch.Generator, step: int, device: str = "cpu"
) -> Tensor:
    """Return the mean squared error of every block's flow, noise - clean, float32 [B, blocks], with a higher weight on
    objects."""
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
    """Return all blocks as the model predicts them at the last of the few noise levels, [B, C, F, H, W]. As context
    they train later blocks on generated context, in a single additional pass ("Parallel Scheduled Sampling")."""
    last = float(recipe.sampler.levels[-2])
    noisy = (1 - last) * blocks.clean + last * blocks.noise
    level = noisy.new_full((len(noisy), noisy.shape[2]), last)
    return noisy - last * _flow(model, context, noisy, level, blocks.segments)


def _flow(model: CausalWan, context: Tensor, noisy: Tensor, level: Tensor, segments: Sequence[Segment]) -> Tensor:
    with autocast(noisy.device):
        return forced_flow(model, context, noisy, level * TRAINING_STEPS, segments, PLAN.size).float()
