"""Context in a cache that grows block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.core.arguments import check_fields
from mmspec.video.chunk_cache import ChunkCache, Held, Positions
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
    positions: "absolute", those of the film, or "window", see `ChunkCache`.
    recache: whether, before the first block under another prompt, the frames that are still attended to are read again under
    it ("LongLive: Real-time Interactive Long Video Generation"); else what was read keeps its prompt, as in Self-Forcing.
    """

    window: int | None = None
    sinks: int | None = None
    at_once: int | None = 1
    positions: Positions = "absolute"
    recache: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.at_once is not None and self.at_once < 1:
            raise ValueError(f"at_once: expected None or at least 1, got {self.at_once}; read one block a pass or more")
        ChunkCache(positions=self.positions)

    def open(self, video: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> CachedState:
        return CachedState(video, text, noise, size, self)

    def cache(self, video: WanVideo) -> ChunkCache:
        """An empty cache.   Raises ValueError as it does."""
        config = video.transformer.config
        local = None if config.local_attn_size == -1 else config.local_attn_size
        window = local if self.window is None else self.window
        return ChunkCache(window, config.sink_size if self.sinks is None else self.sinks, self.positions)


class CachedState(WanState):
    """The state of a request whose context is cached; watermark: blocks whose keys and values are in the cache."""

    def __init__(self, video: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int], context: Cached):
        super().__init__(video, text, noise, size)
        self.context, self.cache = context, context.cache(video)
        # the block before which all was read again, and under which prompt
        self._renewed: tuple[int, Tensor | None] = (0, None)

    @torch.no_grad()
    def generate(self, film: Film) -> Tensor:
        self.absorb(film)
        return self._generate(len(film), self.cache)

    @torch.no_grad()
    def absorb(self, film: Film) -> None:
        if len(film) < self.watermark:
            raise ValueError(f"film: expected at least the {self.watermark} blocks that were read, got {len(film)}; restore a "
                             "snapshot from before blocks that were not kept")  # fmt: skip
        since, text = self._since(len(film)), self._text(len(film))
        if self.context.recache and since and (since != self._renewed[0] or text is not self._renewed[1]):
            self._renew(film, since)
        while self.watermark < len(film):
            first, most = self.watermark, self.context.at_once or len(film)
            text, last = self._text(first), first + 1
            while last < min(first + most, len(film)) and self._text(last) is text:  # a pass has one prompt
                last += 1
            self._keep(self._joined(film[first:last]), self.video.plan.sizes(first, last), first, self.cache)
            self.watermark = last

    def snapshot(self) -> tuple[int, tuple[int, Tensor | None], Held]:
        return self.watermark, self._renewed, self.cache.snapshot()

    def restore(self, snapshot: tuple[int, tuple[int, Tensor | None], Held]) -> None:
        self.watermark, self._renewed, held = snapshot
        self.cache.restore(held)

    def _renew(self, film: Film, block: int) -> None:
        """What would be held before `block`, read under its prompt into a new cache. It follows from the film alone, whatever
        was read before."""
        cache = self.context.cache(self.video)
        end = self.video.plan.start(block)
        spans = [(0, end)]
        if cache.window is not None and end > cache.window:
            spans = [(0, cache.sinks), (end - cache.window + cache.sinks, end)]
        for first, last in spans:
            cache.skip(first)
            parts = list(self._parts(film[:block], first, last))
            most = self.context.at_once or len(parts)
            for start in range(0, len(parts), most):
                group = parts[start : start + most]
                self._keep(self._joined(group), [part.shape[2] for part in group], block, cache)
        self.cache, self.watermark, self._renewed = cache, block, (block, self._text(block))

    def _parts(self, film: Film, first: int, last: int) -> Iterator[Tensor]:
        """What of each block lies in the frames first..last - 1."""
        for number, block in enumerate(film):
            start = self.video.plan.start(number)
            cut = block[:, :, max(0, first - start) : max(0, last - start)]
            if cut.shape[2]:
                yield cut

    def _joined(self, blocks: Film) -> Tensor:
        return torch.cat([block.to(self.video.transformer.device) for block in blocks], 2)
