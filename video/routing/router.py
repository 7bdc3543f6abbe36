"""What a router is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.verdict import Verdict
from mmspec.video.decoding.evidence import BlockEvidence


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands before a block is drafted. block: its number, of `blocks`.   made: how many before it the target
    drew.   run: drafts that stand in a row right before it.   uniform: in [0, 1), of this row and block."""

    row: int
    block: int
    blocks: int
    made: int
    run: int
    uniform: float


class Router(Rule):
    """A rule over drafted blocks: those that stand are kept as they are, the target redraws the others. Relaxed, as what
    stands is the drafter's: "Speculative Decoding for Autoregressive Video Generation" has no guarantee of law, and neither
    has any router. Setting that gives up nothing: one under which no draft can stand, whose videos are the target's, bit
    for bit.

    judges: whether it looks at scores of drafts; else nothing is scored for it, and without pixels nothing decoded.
    scores_own: which of the target's own blocks it needs scores of.   looks: whether it needs features of drafts.
    """

    exact = False
    proven_for = frozenset({("none", "none")})
    reads = "reward"
    judges: bool = True
    scores_own: Literal["none", "anchors", "all"] = "none"
    looks: bool = False

    def check_rows(self, rows: int, blocks: int) -> None:
        """Raises ValueError for a request that it has no settings for."""

    def drafts(self, place: Place) -> bool:
        """Whether the block is drafted at all; what is not is the target's. Called once a row and block, in order."""
        return True

    def accept(self, evidence: BlockEvidence) -> Tensor:
        """float [B], the probability that the draft stands: 0 or 1 unless the router is random."""
        raise TypeError(f"{type(self).__name__} must define accept")

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        threshold = torch.zeros(draft.value.shape, dtype=torch.float64, device=draft.value.device)
        if draft.tree.nodes > 1:
            threshold[:, 1] = self.accept(evidence).double()
        return Weights(threshold, "descend")

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        verdict.kind, verdict.redo = "regenerate", verdict.node == 0
        return verdict


class TargetAlone(Router):
    """Every block is the target's own: plain decoding through the same loop. Exact."""

    name, exact, judges = "exact", True, False

    def drafts(self, place: Place) -> bool:
        return False

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return torch.zeros_like(evidence.run, dtype=torch.float64)
