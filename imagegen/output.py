"""What a generation call returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from PIL.Image import Image
from torch import Tensor

from mmspec.core.stats import Stats


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
