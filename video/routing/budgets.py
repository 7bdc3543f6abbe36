"""Routers that look at no score: so many blocks of a video are the target's, and none of those is drafted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.core.arguments import whole
from mmspec.video.decoding.evidence import BlockEvidence
from mmspec.video.routing.router import Place, Router


class Budget(Router):
    """A base. budget: blocks of a video that are the target's, those counted that begin a prompt; or one such number a row,
    as another router has used them. As many as the video has is the target alone.   Raises ValueError for less than 1."""

    judges = False

    def __init__(self, budget: int | Sequence[int]):
        many = isinstance(budget, Sequence) and not isinstance(budget, str)
        self.budgets = tuple(whole("budget", one) for one in (budget if many else [budget]))
        self.by_row = many
        if not self.budgets or min(self.budgets) < 1:
            raise ValueError(
                f"budget: expected 1 or more, since the first block is the target's, got {budget}; raise it"
            )
        self.name = f"{type(self).__name__.lower()} {', '.join(map(str, self.budgets))} (relaxed)"

    def of(self, row: int) -> int:
        """The budget of a row."""
        return self.budgets[row if self.by_row else 0]

    def check_rows(self, rows: int, blocks: int) -> None:
        if self.by_row and len(self.budgets) != rows:
            raise ValueError(f"budget: expected one number or {rows}, one a row, got {len(self.budgets)}; correct it")

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return torch.ones_like(evidence.run, dtype=torch.float64)


class Strided(Budget):
    """The target's blocks stand at even distances, which bounds the longest run of drafts: what StrideAR (SpecAR) reaches
    without any reward, and what a reward has to beat at equal budget. Relaxed."""

    def drafts(self, place: Place) -> bool:
        budget = min(self.of(place.row), place.blocks)
        return place.block > 0 and place.block * budget // place.blocks == (place.block - 1) * budget // place.blocks


class Random(Budget):
    """The target's blocks are drawn at random, each set of as many with the first among them as likely as any other.
    Relaxed."""

    def drafts(self, place: Place) -> bool:
        left, places = self.of(place.row) - place.made, place.blocks - place.block
        return place.block > 0 and place.uniform * places >= left
