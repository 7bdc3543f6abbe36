"""Context in a cache that grows block by block, at the positions where the frames stand in the video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.video.chunk_cache import ChunkCache, Held
from mmspec.video.generation.noise import BlockNoise
from mmspec.video.model import Film
from mmspec.video.wan.state import WanState

if TYPE_CHECKING:
    from mmspec.video.wan.video import WanVideo


@dataclass(frozen=True, slots=True)
class Cached:
    """Self-Forcing's context: every committed block is passed over once, clean, and its keys and values are kept.

    window, sinks: see `ChunkCache`; None for those of the model's config.
    at_once: how many unread blocks are read in one pass at most, which gives what one pass each would; None for all.
    """

    window: int | None = None
    sinks: int | None = None
    at_once: int | None = 1

    def __post_init__(self) -> None:
        if self.at_once is not None and self.at_once < 1:
            raise ValueError(f"at_once: expected None or at least 1, got {self.at_once}; read one block a pass or more")

    def open(self, video: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> CachedState:
        return CachedState(video, text, noise, size, self)

    def cache(self, video: WanVideo) -> ChunkCache:
        """An empty cache.   Raises ValueError as it does."""
        config = video.transformer.config
        local = None if config.local_attn_size == -1 else config.local_attn_size
        window = local if self.window is None else self.window
        return ChunkCache(window, config.sink_size if self.sinks is None else self.sinks)


class CachedState(WanState):
    """The state of a request whose context is cached; watermark: blocks whose keys and values are in the cache."""

    def __init__(self, video: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int], context: Cached):
        super().__init__(video, text, noise, size)
        self.context, self.cache = context, context.cache(video)

    @torch.no_grad()
    def generate(self, film: Film) -> Tensor:
        self.absorb(film)
        return self._generate(len(film), self.cache)

    @torch.no_grad()
    def absorb(self, film: Film) -> None:
        if len(film) < self.watermark:
            raise ValueError(f"film: expected at least the {self.watermark} blocks that were read, got {len(film)}; restore a "
                             "snapshot from before blocks that were not kept")  # fmt: skip
        while self.watermark < len(film):
            first, most = self.watermark, self.context.at_once or len(film)
            text, last = self._text(first), first + 1
            while last < min(first + most, len(film)) and self._text(last) is text:  # a pass has one prompt
                last += 1
            latents = torch.cat([film[block].to(self.video.transformer.device) for block in range(first, last)], 2)
            self._keep(latents, self.video.plan.sizes(first, last), first, self.cache)
            self.watermark = last

    def snapshot(self) -> tuple[int, Held]:
        return self.watermark, self.cache.snapshot()

    def restore(self, snapshot: tuple[int, Held]) -> None:
        self.watermark = snapshot[0]
        self.cache.restore(snapshot[1])

    def recache(self, text: Tensor, block: int) -> None:
        """Another prompt from `block` on, under which all that was read is read again when it is next needed: LongLive's
        re-caching ("LongLive: Real-time Interactive Long Video Generation"), over the whole film."""
        self.switch(text, block)
        self._texts = [(0, text)]
        self.watermark, self.cache = 0, self.context.cache(self.video)
