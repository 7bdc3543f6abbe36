"""What every pipeline does with a request: run it to the end, and make pictures of what it gives."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

from torch import Tensor

from mmspec.core.loop import Decoding, Target
from mmspec.imagegen.output import ImageOutput
from mmspec.imagegen.pixels import to_pil


class PixelModel(Protocol):
    """no_pixels: one sentence why tokens cannot be decoded, None where they can."""

    no_pixels: str | None

    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels float32 [B, 3, H, W] in 0..1."""


class BasePipeline:
    """A pipeline over one model. Subclasses say how a request starts and which tokens its target holds."""

    model: PixelModel

    def start(self, prompts: object, **how: Any) -> Decoding:
        """A request that has not run yet."""
        raise NotImplementedError

    def tokens(self, target: Target) -> Tensor:
        """What `decode` of the model takes, of all rows."""
        raise NotImplementedError

    def generate(self, prompts: object, pixels: bool, **how: Any) -> ImageOutput:
        """Runs what `start` makes. Raises ValueError where pixels are asked for and there are none."""
        if pixels and self.model.no_pixels:  # before anything is generated
            raise ValueError(self.model.no_pixels)
        started = perf_counter()
        run = self.start(prompts, **how)
        stats, target = run.run(), run.target
        stats.close(perf_counter() - started)
        tokens = self.tokens(target)
        images = self.to_images(tokens, target.errors) if pixels else []
        return ImageOutput(images, tokens, stats, target.errors)

    def to_images(self, tokens: Tensor, errors: dict[int, str]) -> list:
        """PIL images of tokens [B, ...]; None where a row failed."""
        pictures = to_pil(self.model.decode(tokens))
        return [None if row in errors else picture for row, picture in enumerate(pictures)]
