"""The result of a request for videos: statistics, a record per block, and the output."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import quantiles

import numpy as np
from torch import Tensor

from mmspec.core.round.stats import Stats
from mmspec.io.interrupts import Stopped


@dataclass(slots=True)
class BlockRecord:
    drafted: bool = False  # whether the router judged a draft of it
    kept: bool = False  # otherwise the target generated the block
    scores: list[float] | None = None  # per frame of the draft; None where it was not scored
    own_scores: list[float] | None = None  # per frame of the target's block, likewise
    features: list[float] | None = None  # of the draft, see `FEATURES`; None where they were not computed


@dataclass(slots=True)
class VideoStats(Stats):
    """`Stats` whose unit is a block; `accept_length` is the number of blocks per block that the target generates.
    `target_passes` counts the rounds in which the target generates at least one block. `prefill_s` and `verify_s` are
    the remaining seconds of the rounds."""

    target_forwards: int = 0  # summed over rows; `drafter_passes` are those of the drafter
    context_forwards: int = 0  # those that read context
    vae_s: float = 0.0  # decoding to pixels
    reward_s: float = 0.0
    block_s: list[float] = field(default_factory=list)  # of each round, which ends with a block of every row
    records: list[list[BlockRecord]] = field(default_factory=list)  # per row and finished block

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
        """Per row, the number of blocks that the target generated."""
        return [sum(not block.kept for block in row) for row in self.records]

    def latency(self, percent: int = 50) -> float:
        """Return the seconds within which `percent` (1..99) of a hundred blocks are finished."""
        if not self.block_s or not 0 < percent < 100:
            raise ValueError(
                f"percent: expected 1 to 99 and a finished block, got {percent} of {len(self.block_s)}; run the "
                "request first"
            )
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
    """The videos of a request, none with `pixels=False`."""

    videos: list[np.ndarray | None]  # uint8 [F, H, W, 3]; a failed row has its finished blocks or None
    latents: list[Tensor | None]  # float [C, F, h, w]; None where no block is finished
    stats: VideoStats
    errors: dict[int, str] = field(default_factory=dict)  # per failed row, a sentence


class VideoStopped(Stopped):
    """A request that a signal ended between two blocks.

    Attributes:
        output: The finished blocks, in the form of a complete call.
    """

    def __init__(self, output: VideoOutput, blocks: int, number: int):
        most = max(output.stats.emitted)
        super().__init__(f"{most} of {blocks} blocks of the video are finished and kept", number, resumes=False)
        self.output = output
