"""A Wan model in one request: what all ways of keeping context share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.video.chunk_cache import ChunkCache
from mmspec.video.generation.noise import BlockNoise
from mmspec.video.wan.transformer import Prompt

if TYPE_CHECKING:
    from mmspec.video.wan.video import WanVideo


class WanState:
    """Draws blocks and reads clean ones; a subclass says from which cache.

    text: float [B, L, d].   noise: of (block, draw).   size: rows and columns of a latent frame.
    Raises ValueError for noise of another number of rows.
    """

    watermark = 0

    def __init__(self, video: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]):
        if noise.batch != len(text):
            raise ValueError(f"noise: expected {len(text)} rows, one a prompt, got {noise.batch}; give as many seeds")
        self.video, self.noise, self.size = video, noise, size
        self.passes = self.context_passes = 0
        self._texts = [(0, text)]
        self._read: tuple[int, Prompt] | None = None  # of one prompt only: for a large model they are large

    def switch(self, text: Tensor, block: int) -> None:
        """Another prompt from `block` on. Raises ValueError for a block that has been read and for one before the last
        switch."""
        first = max(self.watermark, self._texts[-1][0])
        if block < first:
            raise ValueError(f"block: expected {first} or later, since earlier ones have their prompt, got {block}; switch "
                             "for a block that is not drawn yet")  # fmt: skip
        if text.shape[0] != self.noise.batch:
            raise ValueError(
                f"text: expected {self.noise.batch} rows, got {text.shape[0]}; give a prompt for each video"
            )
        if block == self._texts[-1][0]:
            self._texts.pop()
            self._read = None
        self._texts.append((block, text))

    def _number(self, block: int) -> int:
        """Which of the prompts is that of a block."""
        return max(number for number, (first, _) in enumerate(self._texts) if first <= block)

    def _prompt(self, block: int) -> Prompt:
        number = self._number(block)
        if self._read is None or self._read[0] != number:
            self._read = None
            self._read = number, self.video.transformer.read(self._texts[number][1])
        return self._read[1]

    def _draw(self, block: int, cache: ChunkCache) -> Tensor:
        """Latents of a block from its reserved noise, behind what the cache holds, where nothing of it stays."""
        model, sampler, prompt = self.video.transformer, self.video.sampler, self._prompt(block)
        shape = (self.video.channels, self.video.plan.frames(block), *self.size)

        def velocity(x: Tensor, timestep: float, until: float) -> Tensor:
            self.passes += 1
            time, end = (self._time(one, shape[1]) for one in (timestep, until))
            return model(x, time, prompt, cache, until=end if sampler.until else None)

        def noise(draw: int) -> Tensor:
            return self.noise.at(block, draw, shape).to(model.device, model.dtype)

        try:
            return sampler.draw(velocity, noise)
        finally:
            cache.discard()

    def _keep(self, latents: Tensor, sizes: Sequence[int], block: int, cache: ChunkCache) -> None:
        """One clean pass over blocks of `sizes` frames, under the prompt of `block`; their keys and values are committed."""
        model = self.video.transformer
        self.passes, self.context_passes = self.passes + 1, self.context_passes + 1
        time = self._time(self.video.context_noise, latents.shape[2])
        model(latents.to(model.device, model.dtype), time, self._prompt(block), cache, sizes)
        cache.commit()

    def _time(self, timestep: float, frames: int) -> Tensor:
        return torch.full(
            (self.noise.batch, frames), timestep, dtype=torch.float32, device=self.video.transformer.device
        )
