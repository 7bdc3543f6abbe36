"""The result of a request for videos: statistics, a record per block, and the output."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import quantiles

import numpy as np
from torch import Tensor

from mmspec.core.stats import Stats
from mmspec.io.interrupts import Stopped


@dataclass(slots=True)
class BlockRecord:
    """The record of one block of one video.

    Attributes:
        drafted: Whether the router judged a draft of it.
        kept: Whether the draft is accepted; otherwise the target generated the block.
        scores: A score per frame of the draft; None where it was not scored.
        own_scores: A score per frame of the target's block; None where it was not scored.
        features: Features of the draft, see `FEATURES`; None where they were not computed.
    """

    drafted: bool = False
    kept: bool = False
    scores: list[float] | None = None
    own_scores: list[float] | None = None
    features: list[float] | None = None


@dataclass(slots=True)
class VideoStats(Stats):
    """`Stats` whose unit is a block.

    `accept_length` is the number of blocks per block that the target generates. `target_passes` counts the rounds in
    which the target generates at least one block. `prefill_s` and `verify_s` are the remaining seconds of the rounds.

    Attributes:
        target_forwards: Forward passes of the target, summed over rows; `drafter_passes` are those of the drafter.
        context_forwards: Forward passes of the target that read context.
        vae_s: Seconds of decoding to pixels.
        reward_s: Seconds of scoring.
        block_s: Seconds of each round; a round ends with a block of every row.
        records: Per row, a record per finished block.
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
        """Seconds of the whole call by part: draft, target, vae, reward, other."""
        parts = self.seconds()
        rest = parts.pop("prefill") + parts.pop("verify") + self.other_s
        return parts | {"other": rest}

    @property
    def acceptance(self) -> list[float]:
        """Per block, the share of rows whose draft is accepted; a block without a draft counts as the target's."""
        longest = max(map(len, self.records), default=0)
        columns = [[row[block].kept for row in self.records if len(row) > block] for block in range(longest)]
        return [sum(column) / len(column) for column in columns]

    @property
    def accepted_share(self) -> float:
        """The share of accepted drafts among all blocks except the first block of each video."""
        later = [block.kept for row in self.records for block in row[1:]]
        return sum(later) / max(len(later), 1)

    @property
    def target_blocks(self) -> list[int]:
        """Per row, the number of blocks that the target generated: the budget that a router used."""
        return [sum(not block.kept for block in row) for row in self.records]

    def latency(self, percent: int = 50) -> float:
        """Return the seconds within which `percent` of a hundred blocks are finished.

        Raises:
            ValueError: No block is finished, or `percent` is not between 1 and 99.
        """
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
    """The videos of a request.

    Attributes:
        videos: Per row, uint8 [F, H, W, 3]. A failed row has its finished blocks, or None; empty with `pixels=False`.
        latents: Per row, float [C, F, h, w], or None where no block is finished.
        stats: See `VideoStats`.
        errors: Per failed row, a sentence.
    """

    videos: list[np.ndarray | None]
    latents: list[Tensor | None]
    stats: VideoStats
    errors: dict[int, str] = field(default_factory=dict)


class VideoStopped(Stopped):
    """A request that a signal ended between two blocks.

    Attributes:
        output: The finished blocks, in the form of a complete call.
    """

    def __init__(self, output: VideoOutput, blocks: int, number: int):
        most = max(output.stats.emitted)
        super().__init__(f"{most} of {blocks} blocks of the video are finished and kept", number, resumes=False)
        self.output = output
