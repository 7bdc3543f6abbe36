"""What every image pipeline shares: running a request, its output, and the controller behind `decoding="auto"`."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from einops import rearrange
from PIL.Image import Image, fromarray
from torch import Tensor

from mmspec.core.fingerprint import layout_of, modules_of
from mmspec.core.goodput import Goodput
from mmspec.core.loop import DecodingRun, Target, run_to_end
from mmspec.core.stats import Stats
from mmspec.imagegen.jacobi.drafter import SCD
from mmspec.io.validation import boolean


@dataclass(slots=True)
class ImageOutput:
    """videos: per row its frames as PIL images, a single one of an image; None for a failed row; empty where no pixels were
        asked for.
    tokens: in raster order over time, 0 where a failed row never got: codes int64 [B, frames * rows * cols], or vectors
        float32 [B, L, d].
    stats: see `Stats`.   errors: per failed row, one sentence.
    """

    videos: list[list[Image] | None]
    tokens: Tensor
    stats: Stats
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def images(self) -> list[Image | None]:
        """The image of every row, of a video the first frame; None for a failed row."""
        return [None if frames is None else frames[0] for frames in self.videos]

    def arrays(self) -> np.ndarray:
        """All frames as uint8 [B, F, H, W, 3]. Raises ValueError where a row failed or no pixels were asked for."""
        if not self.videos or any(frames is None for frames in self.videos):
            raise ValueError(f"videos: expected the frames of every row, got {list(self.errors.values()) or 'no pixels'}; use "
                             "`videos` for the rows that did not fail, and pixels=True")  # fmt: skip
        return np.stack([np.stack([np.asarray(frame) for frame in frames]) for frames in self.videos])


def to_pil(pixels: Tensor) -> list[Image]:
    """RGB images of pixels float [B, 3, H, W] in 0..1, rounded to the nearest of 256 levels."""
    levels = pixels.float().clamp(0, 1).mul(255).round().byte()
    return [fromarray(level) for level in rearrange(levels, "b c h w -> b h w c").cpu().numpy()]


class PixelModel(Protocol):
    """no_pixels: one sentence why tokens cannot be decoded, None where they can."""

    no_pixels: str | None

    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels float32 [B * frames, 3, H, W] in 0..1, an image being one frame."""


class BasePipeline:
    """A pipeline over one model. Subclasses say how a request starts and which tokens its target holds."""

    model: PixelModel

    def start(self, prompts: object, **how: Any) -> DecodingRun:
        """A request that has not run yet."""
        raise NotImplementedError

    def tokens(self, target: Target) -> Tensor:
        """What `decode` of the model takes, of all rows."""
        raise NotImplementedError

    def generate(self, prompts: object, pixels: bool, **how: Any) -> ImageOutput:
        """Runs what `start` makes. Raises ValueError where pixels are asked for and there are none."""
        if boolean("pixels", pixels) and self.model.no_pixels:  # before anything is generated
            raise ValueError(self.model.no_pixels)
        run = run_to_end(lambda: self.start(prompts, **how))
        stats, target = run.stats, run.target
        tokens = self.tokens(target)
        videos = self.to_videos(tokens, target.errors) if pixels else []
        return ImageOutput(videos, tokens, stats, target.errors)

    def to_videos(self, tokens: Tensor, errors: dict[int, str]) -> list[list[Image] | None]:
        """The frames of tokens [B, ...] as PIL images; None where a row failed."""
        pictures, rows = to_pil(self.model.decode(tokens)), len(tokens)
        frames = len(pictures) // rows
        return [None if row in errors else pictures[row * frames : (row + 1) * frames] for row in range(rows)]


AUTO = "auto"
LONGEST_WINDOW = 64  # values a pass at most; the controller finds what pays
# of each pipeline: the layout of its model and the controller
_controllers: WeakKeyDictionary[object, tuple[tuple, Goodput]] = WeakKeyDictionary()
_lock = Lock()


def auto_decoding() -> Goodput:
    """What `decoding="auto"` is of a model of codes: `SCD`, which needs no training, in windows as long as pays by measured
    time, and plain decoding where none does. Exact, see `Goodput`.

    Made once and given to every request, as a pipeline does: it goes on learning.
    """
    return Goodput(SCD(LONGEST_WINDOW))


def auto_controller(pipe: object) -> Goodput:
    """Return the controller of a pipeline, which learns as its requests run. Nothing is written on the pipeline.

    A model that has been moved to another device or precision gets a new controller: its times are others.
    """
    layout = layout_of(*modules_of(pipe.model))
    with _lock:
        known = _controllers.get(pipe)
        if known is None or known[0] != layout:
            known = _controllers[pipe] = layout, auto_decoding()
        return known[1]
