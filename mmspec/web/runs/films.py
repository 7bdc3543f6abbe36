"""One video of blocks, drawn by the model alone and then with drafts that a router lets stand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mmspec.web.runs.lane import Lane, last_kept, run_lane, warm

if TYPE_CHECKING:
    import numpy as np

    from mmspec.core.loop import Decoding
    from mmspec.evaluate.video.resources import VideoResources
    from mmspec.video.decoding.stats import BlockRecord

PARTS = ("video", "video/draft", "video/reward")
STANDS, REDRAWN, ALONE = "the draft stands", "redrawn by the model", "drawn by the model"


@dataclass(slots=True)
class Filmed(Lane):
    """frames: uint8 [F, H, W, 3], once it is finished.   blocks: of the whole video."""

    frames: np.ndarray | None = None
    blocks: int = 0

    @property
    def ended(self) -> bool:
        """Nothing more comes."""
        return self.frames is not None or self.stopped is not None


@dataclass(frozen=True, slots=True)
class Film:
    """threshold: the score that a draft needs to stand; infinity is the model alone, bit for bit.   blocks: of the video."""

    prompt: str
    threshold: float
    seed: int
    blocks: int


def missing() -> str | None:
    """One sentence where the zoo's video model is not built, None where it is."""
    from mmspec import zoo

    known = zoo.names()
    absent = [name for name in PARTS if name not in known]
    if not absent:
        return None
    commands = " and ".join(f"mmspec zoo build {name}" for name in absent)
    return f"No video model ships with mmspec yet: run {commands}, then come back to this tab."


def films(resources: VideoResources, film: Film, seconds: float) -> Iterator[tuple[Filmed, Filmed]]:
    """The plain video and then the routed one, block by block; the last of each has frames.

    seconds: that each may take.   Raises ValueError for what the pipeline or the router refuses.
    """
    from mmspec.evaluate.video.decodings import Wishes, way_of

    routed = way_of("sdvg", resources, Wishes(threshold=film.threshold))
    plain, fast = Filmed("plain decoding"), Filmed(f"SDVG, threshold {film.threshold:g}")
    pipe = resources.pipeline
    ways = ((plain, partial(_start, pipe, film, {})), (fast, partial(_start, pipe, film, routed.arguments)))
    warm(ways[1][1])
    for lane, start in ways:
        for run in run_lane(lane, start, _route, seconds):
            lane.blocks = run.target.script.blocks
            yield plain, fast
            if lane.finished:
                with lane.timed():
                    lane.frames = pipe.output(run).videos[0]
                yield plain, fast


def _start(pipe: Any, film: Film, how: Any) -> Decoding:
    return pipe.start([film.prompt], seed=[film.seed], blocks=film.blocks, **how)


def _route(run: Decoding) -> tuple[dict[str, list], int]:
    """What became of the block that was just finished."""
    records = run.stats.records[0] if run.stats.records else []
    if not records or run.target.errors:
        return {"blocks": []}, 0
    record = records[-1]
    name = "accepted" if record.kept else "corrected" if record.drafted else "own"
    return {"blocks": [(len(records) - 1, name, score(record))]}, last_kept(run)


def score(record: BlockRecord) -> float | None:
    """The least score of the frames of a draft, by which it was judged; of the model's own block where nothing was drafted."""
    frames = record.scores if record.scores is not None else record.own_scores
    return None if not frames or not all(map(math.isfinite, frames)) else min(frames)


def identical(one: Filmed, other: Filmed) -> bool:
    """Whether both are finished and equal in every pixel."""
    import numpy as np

    return one.frames is not None and other.frames is not None and np.array_equal(one.frames, other.frames)
