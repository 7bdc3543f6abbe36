"""The parts that all image pipelines share: running a request, its output, and the controller of `decoding="auto"`."""

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

from mmspec.core.drafting.named_weights import Load
from mmspec.core.layers.fingerprint import made_once, modules_of
from mmspec.core.length.goodput import Goodput
from mmspec.core.round.loop import DecodingRun, Target, run_to_end
from mmspec.core.round.stats import Stats
from mmspec.imagegen.jacobi.jacobi_drafts import SJD
from mmspec.imagegen.request import AUTO, PipelineRequest
from mmspec.io.validation import boolean
from mmspec.methods import method


@dataclass(slots=True)
class ImageOutput:
    """The images or videos of a request.

    Attributes:
        videos: The frames of each row as PIL images, a single frame for an image; None for a failed row. Empty where
            the request asked for no pixels.
        tokens: The tokens in raster order over time, 0 where a failed row stopped early: codes int64 [B, frames * rows
            * cols], or vectors float32 [B, L, d].
        stats: The statistics of the run, see `Stats`.
        errors: A sentence for each failed row.
    """

    videos: list[list[Image] | None]
    tokens: Tensor
    stats: Stats
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def images(self) -> list[Image | None]:
        """The image of each row, or the first frame of a video; None for a failed row."""
        return [None if frames is None else frames[0] for frames in self.videos]

    def arrays(self) -> np.ndarray:
        """Return all frames as uint8 [B, F, H, W, 3]."""
        if not self.videos or any(frames is None for frames in self.videos):
            raise ValueError(
                f"videos: expected the frames of every row, got {list(self.errors.values()) or 'no pixels'}; use "
                "`videos` for the rows that did not fail, and pixels=True"
            )
        return np.stack([np.stack([np.asarray(frame) for frame in frames]) for frames in self.videos])


def to_pil(pixels: Tensor) -> list[Image]:
    """Convert pixels float [B, 3, H, W] in 0..1 to RGB images, rounded to the nearest of 256 levels."""
    levels = pixels.float().clamp(0, 1).mul(255).round().byte()
    return [fromarray(level) for level in rearrange(levels, "b c h w -> b h w c").cpu().numpy()]


class PixelModel(Protocol):
    no_pixels: str | None  # why tokens cannot be decoded; None where they can

    def decode(self, tokens: Tensor) -> Tensor:
        """Return pixels float32 [B * frames, 3, H, W] in 0..1; an image has a single frame."""


class BasePipeline:
    """Base of the pipelines. A subclass sets `Request`, and loaders for the parts that decoding texts name."""

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
        """Generate an image or a video for each class label, text, or other input of the model. `pixels` False leaves
        the tokens undecoded; the fields of the pipeline's `Request` describe the other settings."""
        if boolean("pixels", pixels) and self.model.no_pixels:  # before anything is generated
            raise ValueError(self.model.no_pixels)
        run = run_to_end(lambda: self.start(prompts, **settings))
        stats, target = run.stats, run.target
        tokens = self.tokens(target)
        videos = self.to_videos(tokens, target.errors) if pixels else []
        return ImageOutput(videos, tokens, stats, target.errors)

    def start(self, prompts: object, **settings: Any) -> DecodingRun:
        """Return a request that has not run yet; call its `step()` until that returns False."""
        request = self.Request.of(settings).resolved(self, prompts)
        target, drafter, rule = request.decoding.prepare(self.model, request)
        return DecodingRun(target, drafter, rule, request.keys)

    def tokens(self, target: Target) -> Tensor:
        """Return the tokens in the form that the model's `decode` expects."""
        raise NotImplementedError

    def to_videos(self, tokens: Tensor, errors: dict[int, str]) -> list[list[Image] | None]:
        """Decode tokens [B, ...] to frames as PIL images; None where a row failed."""
        pictures, rows = to_pil(self.model.decode(tokens)), len(tokens)
        frames = len(pictures) // rows
        return [None if row in errors else pictures[row * frames : (row + 1) * frames] for row in range(rows)]


def _with_arguments(method: Callable, request: type[PipelineRequest]) -> Callable:
    @wraps(method)
    def described(*args: Any, **settings: Any) -> Any:
        return method(*args, **settings)

    written = signature(method)
    own = [argument for argument in written.parameters.values() if argument.kind is not Parameter.VAR_KEYWORD]
    named = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type) for f in request.arguments()
    ]
    first = [argument for argument in own if argument.kind is not Parameter.KEYWORD_ONLY]
    described.__signature__ = written.replace(parameters=[*first, *named, *own[len(first) :]])
    return described


@method(
    "ar",
    domain=("image", "continuous", "video"),
    kind="decoding",
    title="plain",
    exact=True,
    about="plain decoding",
    order=0,
    models=("codes", "masked", "causal"),
)
def plain_decoding() -> None:
    """Decode without drafts."""


LONGEST_WINDOW = 64  # the most values per pass; the controller chooses the fastest length


@method(
    "auto",
    domain=("image", "video"),
    models=("codes",),
    kind="decoding",
    title="auto",
    exact=True,
    about="coupled Jacobi decoding as long as measured times say that it is faster",
    order=6,
)
def auto_decoding() -> Goodput:
    """Return the decoding of `decoding="auto"` for a model of codes. Exact, see `Goodput`. It drafts with coupled
    `SJD`, which needs no training. A pipeline creates it once, so that it learns over all requests."""
    return Goodput(SJD(LONGEST_WINDOW, coupling="gumbel"))


def auto_controller(pipe: object) -> Goodput:
    """Return a pipeline's controller, anew after a move to another device or precision, where times differ."""
    return made_once(pipe, AUTO, auto_decoding, *modules_of(pipe.model))
