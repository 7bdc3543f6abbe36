"""The cost of a routed video: counts of passes, and seconds from the cost of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Sync = Literal["lazy", "eager", "rebuilt"]


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """Seconds. target, drafter: of one pass over a block, P_t and P_d.   decode, reward: of one block, V and R; 0 where
    another device has them done in the meantime.   steps, draft_steps: passes that draw a block; one more reads it.
    """

    target: float
    drafter: float
    decode: float = 0.0
    reward: float = 0.0
    steps: int = 4
    draft_steps: int = 4


@dataclass(frozen=True, slots=True)
class BlockWork:
    """How often each thing is done for a video; a fraction where it is an expectation.

    redrawn: blocks the target draws.   drafted: blocks the drafter draws.   target_reads, drafter_reads: blocks that
    they read.   decoded, scored: blocks.
    """

    redrawn: float
    drafted: float
    target_reads: float
    drafter_reads: float
    decoded: float
    scored: float

    def seconds(self, costs: BlockCosts) -> float:
        """What it takes on one device, one thing after the other."""
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
        """Of a video whose blocks were so `drafted` and `kept`, as our round does it: nothing is read that nobody draws
        behind.

        A lazy target reads all it has missed before it draws, a rebuilt one a few latents, which is one pass; the drafter
        reads likewise before it drafts.   decodes: whether pixels are wanted or looked at.   scored: blocks, None for the
        drafted.
        """
        redrawn = [block for block, one in enumerate(kept) if not one]
        drafts = [block for block, one in enumerate(drafted) if one]
        reads = {
            "lazy": max(redrawn, default=0),
            "eager": len(kept) - 1,
            "rebuilt": sum(block > 0 for block in redrawn),
        }[sync]
        wasted = sum(was and not one for was, one in zip(drafted, kept, strict=True))
        decoded = (len(kept) + wasted) * decodes
        return cls(
            len(redrawn), len(drafts), reads, max(drafts, default=0), decoded, len(drafts) if scored is None else scored
        )
