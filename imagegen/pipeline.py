"""The pipeline from prompts to images or videos, for every model of codes and every decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from mmspec.core.drafting.named_weights import Load, decoding_from_text
from mmspec.core.length.goodput import Goodput
from mmspec.core.round.loop import Drafter
from mmspec.imagegen.base_pipeline import BasePipeline, auto_controller
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.request import AUTO, PipelineRequest, derived, raster_decoding
from mmspec.imagegen.target import FilterOrder, Guidance, ImageTarget, Warp
from mmspec.io.validation import LARGEST_SCALE, number, whole


def _eagle(weights: str, pipe: ImagePipeline) -> Any:
    from mmspec.imagegen.eagle.loading import load_drafter

    return load_drafter(weights, target=pipe)


@dataclass(frozen=True, kw_only=True)
class ImageRequest(PipelineRequest):
    """The settings of a request to an `ImagePipeline`.

    Args:
        decoding: A drafter such as `SJD(window=32)`, or a text such as "sjd:window=32" or "eagle@FOLDER" (`mmspec
            methods` lists them); None for plain decoding. "auto" chooses the window by measured time and drafts nothing
            where drafts are slower; the values of a seed may then differ from run to run.
        rule: A Rule or its text, such as "lantern:delta=0.2,k=100"; None for "exact". A relaxed rule must be named. A
            decoding with its own order (row-parallel, multi-scale) brings its rule and supports no other.
        guidance_scale: A number or a `Guidance` schedule; None for the pipeline's default.
        temperature: The sampling temperature; 0 is greedy.
        top_k: The number of likeliest values to sample from; 0 for all values, None for the pipeline's default.
        top_p: The probability mass to sample from; 1 for all values.
        filter_order: The filter that comes first: "top_k_first" as in transformers, "top_p_first" as in LANTERN's
            public code.
    """

    decoding: Drafter | str | None = None
    guidance_scale: float | Guidance | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    filter_order: FilterOrder = "top_k_first"
    warp: Warp | None = derived()

    def resolved(self, pipe: Any, prompts: object) -> Self:
        guidance, top_k = self.guidance_scale, self.top_k
        guidance = pipe.guidance_scale if guidance is None else guidance
        if not isinstance(guidance, Guidance):
            guidance = Guidance(number("guidance_scale", guidance, 0, LARGEST_SCALE))
        top_k = pipe.top_k if top_k is None else whole("top_k", top_k)
        temperature, top_p = number("temperature", self.temperature, 0), number("top_p", self.top_p, 0, 1)
        warp = Warp(temperature, top_k, top_p, self.filter_order)
        model, condition = pipe.model, pipe.model.prepare(prompts)
        decoding = raster_decoding(pipe.automatic if self.decoding == AUTO else pipe.decoding(self.decoding))
        rows = model.rows(condition)
        return self.with_rows(condition, rows, model.device, guidance_scale=guidance, warp=warp, decoding=decoding)

    def target(self, model: ImageModel, kind: type[ImageTarget] = ImageTarget) -> ImageTarget:
        """Return the target of a resolved request."""
        settings = dict(guidance=self.guidance_scale, warp=self.warp, listener=self.listener)
        return kind(model, self.condition, **settings)


class ImagePipeline(BasePipeline):
    """A pipeline over an `ImageModel`, for images, and for videos where the model's geometry has several frames.

    Calls accept the fields of `ImageRequest`. With exact rules every image and video has the distribution of plain
    decoding, and is identical to it at temperature 0.

    Attributes:
        guidance_scale: The default guidance scale, that of the model's published sampler.
        top_k: The default top-k, that of the model's published sampler.
    """

    Request = ImageRequest
    loaders: ClassVar[Mapping[str, Load]] = {"eagle": _eagle}
    guidance_scale, top_k = 1.0, 0

    def __init__(self, model: ImageModel):
        self.model = model

    @property
    def automatic(self) -> Goodput:
        """The decoding of `decoding="auto"`, which learns as the pipeline's requests run."""
        return auto_controller(self)

    def decoding(self, text: Any) -> Any:
        """Return the decoding that a text such as "sjd:window=64" names; an object is returned unchanged."""
        domain = "video" if self.model.geometry.frames > 1 else "image"
        return decoding_from_text(text, self, domain, "codes")

    def tokens(self, target: ImageTarget) -> Tensor:
        """Return the codes int64 [B, frames * rows * cols] in raster order."""
        return target.values[:, self.model.geometry.code_index.to(target.device)]
