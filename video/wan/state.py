"""A Wan model in one request: what all ways of keeping context share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmspec.video.chunk_cache import ChunkCache
from mmspec.video.state import VideoState
from mmspec.video.wan.transformer import Prompt


class WanState(VideoState):
    """Draws blocks and reads clean ones; a subclass says from which cache."""

    _read: tuple[Tensor, Prompt] | None = None  # of one prompt only: for a large model they are large

    def _prompt(self, block: int) -> Prompt:
        text = self._text(block)
        if self._read is None or self._read[0] is not text:
            self._read = None
            self._read = text, self.video.transformer.read(text)
        return self._read[1]

    def _generate(self, block: int, cache: ChunkCache) -> Tensor:
        """Latents of a block behind what the cache holds, where nothing of it stays."""
        model, prompt = self.video.transformer, self._prompt(block)
        try:
            return self._draw(block, lambda x, time, until: model(x, time, prompt, cache, until=until))
        finally:
            cache.discard()

    def _keep(self, latents: Tensor, sizes: Sequence[int], block: int, cache: ChunkCache) -> None:
        """One clean pass over blocks of `sizes` frames, under the prompt of `block`; their keys and values are committed."""
        model = self.video.transformer
        self.passes, self.context_passes = self.passes + 1, self.context_passes + 1
        time = self._time(self.video.context_noise, latents.shape[2])
        model(latents.to(model.device, model.dtype), time, self._prompt(block), cache, sizes)
        cache.commit()
