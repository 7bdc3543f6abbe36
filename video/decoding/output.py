"""What a call for videos returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from mmspec.core.interrupts import Stopped
from mmspec.video.decoding.stats import VideoStats


@dataclass(slots=True)
class VideoOutput:
    """videos: uint8 [F, H, W, 3] a row, the finished blocks of one that failed, None where it finished none; empty where no
    pixels were asked for.   latents: float [C, F, h, w] a row, None likewise.   stats: see `VideoStats`.
    errors: per failed row, one sentence.
    """

    videos: list[np.ndarray | None]
    latents: list[Tensor | None]
    stats: VideoStats
    errors: dict[int, str] = field(default_factory=dict)


class VideoStopped(Stopped):
    """A request that Ctrl-C ended behind a block. output: what is finished, as of a call that ended by itself."""

    def __init__(self, output: VideoOutput, blocks: int, number: int):
        most = max(output.stats.emitted)
        super().__init__(f"{most} of {blocks} blocks of the video are finished and kept", number, resumes=False)
        self.output = output
