"""A Wan model as a block video model, with its context in a cache that grows by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from mmspec.core.round.user_code import user_code
from mmspec.io.validation import Range, check_fields
from mmspec.methods import value_of
from mmspec.video.chunk_cache import ChunkCache, CommittedFrames, Positions
from mmspec.video.generation import BlockNoise, FewStep, Sampler
from mmspec.video.model import BlockPlan, BlockVideoState, CommittedBlocks, TransformerVideo, VideoState
from mmspec.video.wan.transformer import CausalWan, PromptStates


class WanState(VideoState):
    _read: tuple[Tensor, PromptStates] | None = None  # of a single prompt, since prompt states take much memory

    def _prompt(self, block: int) -> PromptStates:
        text = self._text(block)
        if self._read is None or self._read[0] is not text:
            self._read = None
            self._read = text, self.model.transformer.read(text)
        return self._read[1]

    def _generate(self, block: int, cache: ChunkCache) -> Tensor:
        """Return latents of the block after the cached frames; the cache keeps nothing of it."""
        transformer, prompt = self.model.transformer, self._prompt(block)
        try:
            return self._draw(block, lambda x, time, until: transformer(x, time, prompt, cache, until=until))
        finally:
            cache.discard()

    def _keep(self, latents: Tensor, sizes: Sequence[int], block: int, cache: ChunkCache) -> None:
        """Run a clean pass over blocks of `sizes` frames under the prompt of `block`; commit their keys and values."""
        model = self.model
        self.passes, self.context_passes = self.passes + 1, self.context_passes + 1
        time = self._time(model.context_noise, latents.shape[2])
        model.transformer(latents.to(model.device, model.dtype), time, self._prompt(block), cache, sizes)
        cache.commit()


@dataclass(frozen=True, slots=True)
class Cached:
    """Self-Forcing's context: each committed block is read once in a clean pass, and its keys and values are cached.

    Args:
        window: The number of visible frames, see `ChunkCache`; None for that of the model's config.
        sinks: The number of first frames that are always visible; None for that of the model's config.
        at_once: The most unread blocks per pass, None for all; the result is that of a pass per block.
        positions: "absolute", positions in the video, or "window", see `ChunkCache`.
        recache: Whether the visible frames are read again under a new prompt before its first block ("LongLive:
            Real-time Interactive Long Video Generation"); otherwise they keep their prompt, as in Self-Forcing.

    Raises:
        ValueError: A setting is out of range.
    """

    window: int | None = None
    sinks: int | None = None
    at_once: Annotated[int, Range(1, hint="read one block a pass or more")] | None = 1
    positions: Positions = "absolute"
    recache: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        ChunkCache(positions=self.positions)

    def open(self, model: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> CachedState:
        return CachedState(model, text, noise, size, self)

    def cache(self, model: WanVideo) -> ChunkCache:
        """Return an empty cache."""
        config = model.transformer.config
        local = None if config.local_attn_size == -1 else config.local_attn_size
        window = local if self.window is None else self.window
        return ChunkCache(window, config.sink_size if self.sinks is None else self.sinks, self.positions)


class CachedState(WanState):
    """The state of a request with a cache; `watermark` counts the blocks whose keys and values it holds."""

    def __init__(self, model: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int], context: Cached):
        super().__init__(model, text, noise, size)
        self.context, self.cache = context, context.cache(model)
        # users' code sees passes over single blocks, as in plain decoding
        self._most = 1 if user_code(model.transformer) else context.at_once
        # the block before which all visible frames were read again, and the prompt of that pass
        self._renewed: tuple[int, Tensor | None] = (0, None)

    @torch.no_grad()
    def generate(self, video: CommittedBlocks) -> Tensor:
        self.absorb(video)
        return self._generate(len(video), self.cache)

    @torch.no_grad()
    def absorb(self, video: CommittedBlocks) -> None:
        self._check_read(video)
        since, text = self._since(len(video)), self._text(len(video))
        if self.context.recache and since and (since != self._renewed[0] or text is not self._renewed[1]):
            self._renew(video, since)
        while self.watermark < len(video):
            first, most = self.watermark, self._most or len(video)
            text, last = self._text(first), first + 1
            while last < min(first + most, len(video)) and self._text(last) is text:  # a pass has a single prompt
                last += 1
            self._keep(self._joined(video[first:last]), self.model.plan.sizes(first, last), first, self.cache)
            self.watermark = last

    def snapshot(self) -> tuple[int, tuple[int, Tensor | None], CommittedFrames]:
        return self.watermark, self._renewed, self.cache.snapshot()

    def restore(self, snapshot: tuple[int, tuple[int, Tensor | None], CommittedFrames]) -> None:
        self.watermark, self._renewed, held = snapshot
        self.cache.restore(held)

    def _renew(self, video: CommittedBlocks, block: int) -> None:
        """Read the visible frames before `block` under its prompt into a new cache, whatever was read before."""
        cache = self.context.cache(self.model)
        end = self.model.plan.start(block)
        spans = [(0, end)]
        if cache.window is not None and end > cache.window:
            spans = [(0, cache.sinks), (end - cache.window + cache.sinks, end)]
        for first, last in spans:
            cache.skip(first)
            parts = list(self._parts(video[:block], first, last))
            most = self.context.at_once or len(parts)
            for start in range(0, len(parts), most):
                group = parts[start : start + most]
                self._keep(self._joined(group), [part.shape[2] for part in group], block, cache)
        self.cache, self.watermark, self._renewed = cache, block, (block, self._text(block))

    def _parts(self, video: CommittedBlocks, first: int, last: int) -> Iterator[Tensor]:
        for number, block in enumerate(video):
            start = self.model.plan.start(number)
            cut = block[:, :, max(0, first - start) : max(0, last - start)]
            if cut.shape[2]:
                yield cut

    def _joined(self, blocks: CommittedBlocks) -> Tensor:
        return torch.cat([block.to(self.model.device) for block in blocks], 2)


class ContextPolicy(Protocol):
    """How a model represents the earlier blocks: `Cached` or `Rebuilt`."""

    def open(self, model: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> BlockVideoState:
        """Return the state of one request."""


@dataclass(frozen=True, slots=True)
class WanVideo(TransformerVideo):
    """Block-causal Wan as a block video model.

    Args:
        transformer: The transformer, of `wan_from_state_dict`.
        context: `Cached` (Self-Forcing, CausVid) or `Rebuilt` (Krea).
        sampler: `FewStep` or `FlowMap`, or a text such as "flow_map:passes=2".
        plan: The frames of the blocks.
        context_noise: The timestep of the passes that read context.
        name: The name in tables.
    """

    transformer: CausalWan
    context: ContextPolicy = Cached()
    sampler: Sampler | str = FewStep()
    plan: BlockPlan = BlockPlan()
    context_noise: float = 0.0
    name: str = "wan"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", value_of(self.sampler, "video", "schedule"))

    def open(self, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> BlockVideoState:
        self._check_size(size, self.transformer.config.patch_size)
        return self.context.open(self, text, noise, size)
