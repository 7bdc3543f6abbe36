"""What every image pipeline shares: running a request, its output, and the controller behind `decoding="auto"`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from einops import rearrange
from PIL.Image import Image, fromarray
from torch import Tensor

from mmspec.core.fingerprint import made_once, modules_of
from mmspec.core.goodput import Goodput
from mmspec.core.loop import DecodingRun, Target, run_to_end
from mmspec.core.pipeline_parts import Load
from mmspec.core.stats import Stats
from mmspec.imagegen.jacobi.drafter import SJD
from mmspec.imagegen.request import AUTO, PipelineRequest
from mmspec.io.validation import boolean
from mmspec.methods import method


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
    """A pipeline over one model. A subclass names the settings of its requests, `Request`, the tokens of its target, and the
    readers of the parts that texts of decodings name."""

    model: PixelModel
    Request: ClassVar[type[PipelineRequest]]
    loaders: ClassVar[Mapping[str, Load]] = {}

    def __init_subclass__(cls) -> None:
        """Show the arguments of a request in the signatures of `__call__` and `start`."""
        if "Request" in vars(cls):
            cls.__call__ = _with_arguments(cls.__call__, cls.Request)
            cls.start = _with_arguments(cls.start, cls.Request)

    @torch.no_grad()
    def __call__(self, prompts: object, *, pixels: bool = True, **settings: Any) -> ImageOutput:
        """Generate an image or a video for each prompt.

        Args:
            prompts: class labels, texts, or other inputs of the model.
            pixels: False leaves the tokens undecoded.
            settings: the fields of the pipeline's `Request`, which describes them.

        Returns:
            The images, their tokens and the statistics.

        Raises:
            ValueError: for unknown arguments, unsupported combinations, and where there is no decoder of pixels.
        """
        if boolean("pixels", pixels) and self.model.no_pixels:  # before anything is generated
            raise ValueError(self.model.no_pixels)
        run = run_to_end(lambda: self.start(prompts, **settings))
        stats, target = run.stats, run.target
        tokens = self.tokens(target)
        videos = self.to_videos(tokens, target.errors) if pixels else []
        return ImageOutput(videos, tokens, stats, target.errors)

    def start(self, prompts: object, **settings: Any) -> DecodingRun:
        """Return a request that has not run yet: call its `step()` until it returns False. Arguments as in the call."""
        request = self.Request.of(settings).resolved(self, prompts)
        target, drafter, rule = request.decoding.prepare(self.model, request)
        return DecodingRun(target, drafter, rule, request.keys)

    def tokens(self, target: Target) -> Tensor:
        """The tokens of all rows, as the model's `decode` takes them."""
        raise NotImplementedError

    def to_videos(self, tokens: Tensor, errors: dict[int, str]) -> list[list[Image] | None]:
        """The frames of tokens [B, ...] as PIL images; None where a row failed."""
        pictures, rows = to_pil(self.model.decode(tokens)), len(tokens)
        frames = len(pictures) // rows
        return [None if row in errors else pictures[row * frames : (row + 1) * frames] for row in range(rows)]


def _with_arguments(method: Callable, request: type[PipelineRequest]) -> Callable:
    """A copy of a pipeline's method whose signature names the settings of a request."""

    @wraps(method)
    def described(*args: Any, **settings: Any) -> Any:
        return method(*args, **settings)

    written = signature(method)
    own = [one for one in written.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    named = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type) for f in request.arguments()
    ]
    first = [one for one in own if one.kind is not Parameter.KEYWORD_ONLY]
    described.__signature__ = written.replace(parameters=[*first, *named, *own[len(first) :]])
    return described


@method(
    "ar", domain=("image", "continuous", "video"), kind="decoding", title="plain", exact=True, about="plain decoding", order=0,
    models=("codes", "masked", "causal"),
)  # fmt: skip
def plain_decoding() -> None:
    """No drafts."""


LONGEST_WINDOW = 64  # values a pass at most; the controller finds what pays


@method(
    "auto", domain=("image", "video"), models=("codes",), kind="decoding", title="auto", exact=True,
    about="coupled Jacobi decoding as long as measured times say that it is faster", order=6,
)  # fmt: skip
def auto_decoding() -> Goodput:
    """What `decoding="auto"` is of a model of codes: coupled `SJD`, which needs no training, in windows as long as pays by
    measured time, and plain decoding where none does. Exact, see `Goodput`.

    Made once and given to every request, as a pipeline does: it goes on learning.
    """
    return Goodput(SJD(LONGEST_WINDOW, coupling="gumbel"))


def auto_controller(pipe: object) -> Goodput:
    """Return the controller of a pipeline, which learns as its requests run. Nothing is written on the pipeline.

    A model that has been moved to another device or precision gets a new controller: its times are others.
    """
    return made_once(pipe, AUTO, auto_decoding, *modules_of(pipe.model))
