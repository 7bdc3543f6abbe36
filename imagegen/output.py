"""What a generation call returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from PIL.Image import Image
from torch import Tensor

from mmspec.core.stats import Stats


@dataclass(slots=True)
class ImageOutput:
    """images: PIL images, None for a failed row; empty where no pixels were asked for.
    tokens: the image's tokens in raster order, 0 where a failed row never got: codes int64 [B, rows * cols], or vectors
        float32 [B, L, d].
    stats: see `Stats`.   errors: per failed row, one sentence.
    """

    images: list[Image | None]
    tokens: Tensor
    stats: Stats
    errors: dict[int, str] = field(default_factory=dict)
