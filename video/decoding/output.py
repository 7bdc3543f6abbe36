"""The result of a request for videos: its statistics, its records a block, and the output."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import quantiles

import numpy as np
from torch import Tensor

from mmspec.core.stats import Stats
from mmspec.io.interrupts import Stopped


@dataclass(slots=True)
class BlockRecord:
    """One block of one video.

    drafted: a draft of it was judged.   kept: the draft stands, else the block is the target's.
    scores, own_scores: a number a frame, of the draft and of the target's block; None where nobody asked.
    features: of the draft, see `FEATURES`; None where nobody asked.
    """

    drafted: bool = False
    kept: bool = False
    scores: list[float] | None = None
    own_scores: list[float] | None = None
    features: list[float] | None = None


@dataclass(slots=True)
class VideoStats(Stats):
    """`Stats` whose unit is a block: `accept_length` is blocks for each one the target had to draw, and `target_passes` are
    rounds in which it drew any.

    target_forwards: forward passes of the target, row after row; `drafter_passes` are the drafter's.   context_forwards: how
    many of the target's read blocks that others drew.   draft_s, target_s: of the models alone.   vae_s, reward_s: decoding
    and scoring.   prefill_s, verify_s: what is left of the rounds.   block_s: seconds of each round, which ends with a block
    of every row.   records: per row, per finished block.
    """

    target_forwards: int = 0
    context_forwards: int = 0
    vae_s: float = 0.0
    reward_s: float = 0.0
    block_s: list[float] = field(default_factory=list)
    records: list[list[BlockRecord]] = field(default_factory=list)

    def seconds(self) -> dict[str, float]:
        parts = ("prefill", "draft", "target", "verify", "vae", "reward")
        return {part: getattr(self, f"{part}_s") for part in parts}

    def took(self, seconds: float) -> None:
        self.block_s.append(seconds)

    @property
    def split(self) -> dict[str, float]:
        """Seconds of the whole call by who took them: draft, target, vae, reward, other."""
        parts = self.seconds()
        rest = parts.pop("prefill") + parts.pop("verify") + self.other_s
        return parts | {"other": rest}

    @property
    def acceptance(self) -> list[float]:
        """Per block, the share of rows whose draft stands; a block that nobody drafted counts as drawn by the target."""
        longest = max(map(len, self.records), default=0)
        columns = [[row[block].kept for row in self.records if len(row) > block] for block in range(longest)]
        return [sum(column) / len(column) for column in columns]

    @property
    def accepted_share(self) -> float:
        """Of all blocks but the first of each video."""
        later = [block.kept for row in self.records for block in row[1:]]
        return sum(later) / max(len(later), 1)

    @property
    def target_blocks(self) -> list[int]:
        """Per row, blocks that the target drew: the budget a router used."""
        return [sum(not block.kept for block in row) for row in self.records]

    def latency(self, percent: int = 50) -> float:
        """Seconds within which so many of a hundred blocks were finished.   Raises ValueError before the first block."""
        if not self.block_s or not 0 < percent < 100:
            raise ValueError(f"percent: expected 1 to 99 and a finished block, got {percent} of {len(self.block_s)}; run the "
                             "request first")  # fmt: skip
        if len(self.block_s) == 1:
            return self.block_s[0]
        return quantiles(self.block_s, n=100, method="inclusive")[percent - 1]

    def to_dict(self) -> dict:
        return Stats.to_dict(self) | {
            "acceptance": self.acceptance,
            "target_blocks": self.target_blocks,
            "split": self.split,
        }


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
