"""The cost of a routed video: counts of passes, and seconds from the cost of each pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Sync = Literal["lazy", "eager", "rebuilt"]


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """Measured costs in seconds, and the passes per block.

    Args:
        target: Seconds of a target pass over a block, P_t.
        drafter: Seconds of a drafter pass over a block, P_d.
        decode: Seconds to decode a block, V; 0 where another device decodes in parallel.
        reward: Seconds to score a block, R; 0 where another device scores in parallel.
        steps: Passes in which the target generates a block; reading a block takes another pass.
        draft_steps: Passes in which the drafter generates a block.
    """

    target: float
    drafter: float
    decode: float = 0.0
    reward: float = 0.0
    steps: int = 4
    draft_steps: int = 4


@dataclass(frozen=True, slots=True)
class BlockWork:
    """The work for one video, in blocks; fractions where it is an expectation.

    Attributes:
        redrawn: Blocks that the target generates.
        drafted: Blocks that the drafter generates.
        target_reads: Blocks that the target reads.
        drafter_reads: Blocks that the drafter reads.
        decoded: Blocks that the autoencoder decodes.
        scored: Blocks that the reward scores.
    """

    redrawn: float
    drafted: float
    target_reads: float
    drafter_reads: float
    decoded: float
    scored: float

    def seconds(self, costs: BlockCosts) -> float:
        """Return the seconds of this work on one device, without overlap."""
        target = costs.steps * self.redrawn + self.target_reads
        drafter = costs.draft_steps * self.drafted + self.drafter_reads
        return (
            costs.target * target + costs.drafter * drafter + costs.decode * self.decoded + costs.reward * self.scored
        )

    @classmethod
    def of(
        cls,
        kept: Sequence[bool],
        drafted: Sequence[bool],
        sync: Sync = "lazy",
        *,
        decodes: bool = True,
        scored: int | None = None,
    ) -> BlockWork:
        """Return the work of our loop for a video, from the decision on each block; `scored` None is all drafted
        blocks. A block is read only if its model generates a later block. A lazy target reads all missing blocks before
        it generates the next, and a rebuilt target reads a few latents in one pass."""
        redrawn = [block for block, accepted in enumerate(kept) if not accepted]
        drafts = [block for block, was_drafted in enumerate(drafted) if was_drafted]
        reads = {
            "lazy": max(redrawn, default=0),
            "eager": len(kept) - 1,
            "rebuilt": sum(block > 0 for block in redrawn),
        }[sync]
        wasted = sum(was_drafted and not accepted for was_drafted, accepted in zip(drafted, kept, strict=True))
        decoded = (len(kept) + wasted) * decodes
        return cls(
            len(redrawn), len(drafts), reads, max(drafts, default=0), decoded, len(drafts) if scored is None else scored
        )
