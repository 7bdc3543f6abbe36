"""One call from prompts to images or videos, for every model of codes and every decoding."""

from __future__ import annotations

from torch import Tensor

from mmspec.core.goodput import Goodput
from mmspec.imagegen.base_pipeline import BasePipeline, auto_controller
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.request import ImageRequest
from mmspec.imagegen.target import ImageTarget


class ImagePipeline(BasePipeline):
    """Generates images, or videos where the model's geometry has several frames, with one `ImageModel`.

    Calls take the fields of `ImageRequest`. Exact with exact rules: every image and video has the law of plain decoding, and
    at temperature 0 is the same.
    guidance_scale, top_k: the defaults of the model's published sampler.
    """

    Request = ImageRequest
    guidance_scale, top_k = 1.0, 0

    def __init__(self, model: ImageModel):
        self.model = model

    @property
    def automatic(self) -> Goodput:
        """The decoding of `decoding="auto"`, which learns as the pipeline's requests run."""
        return auto_controller(self)

    def tokens(self, target: ImageTarget) -> Tensor:
        """The codes int64 [B, frames * rows * cols] in raster order."""
        return target.values[:, self.model.geometry.code_index.to(target.device)]
