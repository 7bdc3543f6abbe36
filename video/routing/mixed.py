"""Routers made of others, and one that tries drafts out."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.arguments import number, whole
from mmspec.video.decoding.evidence import BlockEvidence
from mmspec.video.routing.router import Place, Router


class Hybrid(Router):
    """At most `run` drafts stand in a row, as with evenly placed target blocks, and `veto` may redraw earlier; a block it
    redraws begins a new run, so that the budget goes where scores are low. Relaxed; a run of 0 is the target alone.

    Raises ValueError for a run below 0.
    """

    def __init__(self, run: int, veto: Router):
        if whole("run", run) < 0:
            raise ValueError(f"run: expected 0 or more drafts in a row, got {run}; 0 is the target alone")
        self.run, self.veto = run, veto
        self.exact = run == 0 or veto.exact
        self.judges, self.scores_own, self.looks = veto.judges, veto.scores_own, veto.looks
        self.name = "target alone (run 0)" if self.exact else f"at most {run} drafts, {veto.name}"

    def check_rows(self, rows: int, blocks: int) -> None:
        self.veto.check_rows(rows, blocks)

    def drafts(self, place: Place) -> bool:
        return place.run < self.run and self.veto.drafts(place)

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return self.veto.accept(evidence)


class Explore(Router):
    """A draft stands with probability `rate`, whatever its score; both it and the block that takes its place are scored, which
    gives pairs to train `Learned` on along films that drafts have a part in. At a rate that another router accepts at,
    SDVG's own random baseline. Relaxed; a rate of 0 is the target alone.   Raises ValueError for a rate outside 0..1.
    """

    scores_own, looks = "all", True

    def __init__(self, rate: float):
        self.rate = number("rate", rate, 0, 1)
        self.exact = self.rate == 0
        self.name = "target alone (rate 0)" if self.exact else f"explore {rate:g} (relaxed)"

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return torch.full_like(evidence.run, self.rate, dtype=torch.float64)
