"""What is known of a drafted block when it is judged."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.evidence import Evidence


@dataclass(slots=True)
class BlockEvidence(Evidence):
    """reward: float32 [B, N], the block's score made of its frames'; NaN where nothing was scored, which no comparison lets
    stand.   anchor: float32 [B], the same of the target's block that began the prompt, NaN where nobody asked for it.
    run: int64 [B], drafts that stand in a row right before this block.
    features: float32 [B, K], see `FEATURES`, NaN where nobody asked.
    """

    anchor: Tensor | None = None
    run: Tensor | None = None
    features: Tensor | None = None
