"""What every pipeline does with a request: run it to the end, and make pictures or videos of what it gives."""

from __future__ import annotations

from typing import Any, Protocol

from PIL.Image import Image
from torch import Tensor

from mmspec.core.arguments import boolean
from mmspec.core.loop import Decoding, Target, completed
from mmspec.imagegen.output import ImageOutput
from mmspec.imagegen.pixels import to_pil


class PixelModel(Protocol):
    """no_pixels: one sentence why tokens cannot be decoded, None where they can."""

    no_pixels: str | None

    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels float32 [B * frames, 3, H, W] in 0..1, an image being one frame."""


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
        if boolean("pixels", pixels) and self.model.no_pixels:  # before anything is generated
            raise ValueError(self.model.no_pixels)
        run = completed(lambda: self.start(prompts, **how))
        stats, target = run.stats, run.target
        tokens = self.tokens(target)
        videos = self.to_videos(tokens, target.errors) if pixels else []
        return ImageOutput(videos, tokens, stats, target.errors)

    def to_videos(self, tokens: Tensor, errors: dict[int, str]) -> list[list[Image] | None]:
        """The frames of tokens [B, ...] as PIL images; None where a row failed."""
        pictures, rows = to_pil(self.model.decode(tokens)), len(tokens)
        frames = len(pictures) // rows
        return [None if row in errors else pictures[row * frames : (row + 1) * frames] for row in range(rows)]
