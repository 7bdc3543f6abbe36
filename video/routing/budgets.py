"""Routers without a reward: the target generates a fixed number of blocks, evenly spaced or at random."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.io.validation import whole
from mmspec.methods import method
from mmspec.video.routing.routers import BlockEvidence, BlockPosition, Router, ScoringNeeds


class Budget(Router):
    """The base of routers with a fixed number of target blocks of a video, with those that begin a prompt; or a number
    per row, as another router has used them."""

    needs = ScoringNeeds(reward=False)

    def __init__(self, budget: int | Sequence[int]):
        many = isinstance(budget, Sequence) and not isinstance(budget, str)
        self.budgets = tuple(whole("budget", number) for number in (budget if many else [budget]))
        self.by_row = many
        if not self.budgets or min(self.budgets) < 1:
            raise ValueError(
                f"budget: expected 1 or more, since the first block is the target's, got {budget}; raise it"
            )
        self.name = f"{type(self).__name__.lower()} {', '.join(map(str, self.budgets))} (relaxed)"

    def of(self, row: int) -> int:
        return self.budgets[row if self.by_row else 0]

    def check_rows(self, rows: int, blocks: int) -> None:
        if self.by_row and len(self.budgets) != rows:
            raise ValueError(f"budget: expected one number or {rows} for the rows, got {len(self.budgets)}; correct it")

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return torch.ones_like(evidence.run, dtype=torch.float64)


@method(
    "strided",
    domain="video",
    kind="router",
    title="evenly spaced",
    exact=False,
    order=2,
    about="the target generates evenly spaced blocks",
    paper="StrideAR (SpecAR)",
)
class Strided(Budget):
    """Evenly spaced target blocks, which bound the longest run of drafts. Relaxed.

    StrideAR (SpecAR) uses this rule without any reward. It is the baseline for a reward at equal budget.

    Args:
        budget: The number of blocks of a video that the target generates.
    """

    def drafts(self, position: BlockPosition) -> bool:
        block, blocks = position.block, position.blocks
        budget = min(self.of(position.row), blocks)
        return block > 0 and block * budget // blocks == (block - 1) * budget // blocks


@method(
    "random",
    domain="video",
    kind="router",
    title="at random",
    exact=False,
    order=3,
    about="the target generates blocks at random places",
)
class Random(Budget):
    """Target blocks at random places; all sets of that size with the first block are equally likely. Relaxed.

    Args:
        budget: The number of blocks of a video that the target generates.
    """

    def drafts(self, position: BlockPosition) -> bool:
        left, places = self.of(position.row) - position.target_blocks, position.blocks - position.block
        return position.block > 0 and position.uniform * places >= left
