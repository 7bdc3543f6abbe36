"""One video of blocks, drawn by the model alone and then with drafts that a router lets stand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mmspec.web.lanes.lane import Lane, last_accepted, run_pair

if TYPE_CHECKING:
    import numpy as np

    from mmspec.core.loop import DecodingRun
    from mmspec.evaluate.video.resources import VideoResources
    from mmspec.video.decoding.output import BlockRecord

PARTS = ("video", "video/draft", "video/reward")
STANDS, REDRAWN, ALONE = "the draft stands", "redrawn by the model", "drawn by the model"


@dataclass(slots=True)
class VideoLane(Lane):
    """frames: uint8 [F, H, W, 3], once it is finished.   blocks: of the whole video."""

    frames: np.ndarray | None = None
    blocks: int = 0

    @property
    def ended(self) -> bool:
        """Nothing more comes."""
        return self.frames is not None or self.stopped is not None


@dataclass(frozen=True, slots=True)
class VideoLaneRequest:
    """threshold: the score that a draft needs to stand; infinity is the model alone, bit for bit.   blocks: of the video."""

    prompt: str
    threshold: float
    seed: int
    blocks: int


def missing_models() -> str | None:
    """One sentence where the zoo's video model is not built, None where it is."""
    from mmspec import zoo

    known = zoo.names()
    absent = [name for name in PARTS if name not in known]
    if not absent:
        return None
    commands = " and ".join(f"mmspec zoo build {name}" for name in absent)
    return f"No video model ships with mmspec yet: run {commands}, then come back to this tab."


def video_lanes(
    resources: VideoResources, request: VideoLaneRequest, seconds: float
) -> Iterator[tuple[VideoLane, VideoLane]]:
    """The plain video and then the routed one, block by block; the last of each has frames.

    seconds: that each may take.   Raises ValueError for what the pipeline or the router refuses.
    """
    from mmspec.evaluate.video.decodings import decoding_of

    routed = decoding_of("sdvg", resources, {"threshold": request.threshold})
    plain, fast = VideoLane("plain decoding"), VideoLane(f"SDVG, threshold {request.threshold:g}")
    pipe = resources.pipeline
    starts = (partial(_start, pipe, request, {}), partial(_start, pipe, request, routed.arguments))

    def finish(lane: VideoLane, run: DecodingRun) -> None:
        lane.frames = pipe.output(run).videos[0]

    # the routed lane loads the drafter, the reward and the model
    yield from run_pair(
        (plain, fast), starts, lambda lane: partial(_block_marks, lane), seconds, warmed=starts[1:], finish=finish
    )


def _start(pipe: Any, request: VideoLaneRequest, how: Any) -> DecodingRun:
    return pipe.start([request.prompt], seed=[request.seed], blocks=request.blocks, **how)


def _block_marks(lane: VideoLane, run: DecodingRun) -> tuple[dict[str, list], int]:
    """What became of the block that was just finished."""
    lane.blocks = run.target.request.blocks
    records = run.stats.records[0] if run.stats.records else []
    if not records or run.target.errors:
        return {"blocks": []}, 0
    record = records[-1]
    name = "accepted" if record.kept else "corrected" if record.drafted else "own"
    return {"blocks": [(len(records) - 1, name, score(record))]}, last_accepted(run)


def score(record: BlockRecord) -> float | None:
    """The least score of the frames of a draft, by which it was judged; of the model's own block where nothing was drafted."""
    frames = record.scores if record.scores is not None else record.own_scores
    return None if not frames or not all(map(math.isfinite, frames)) else min(frames)


def identical(one: VideoLane, other: VideoLane) -> bool:
    """Whether both are finished and equal in every pixel."""
    import numpy as np

    return one.frames is not None and other.frames is not None and np.array_equal(one.frames, other.frames)
