"""Blocks under a reward: a drafted block is kept when it is judged good enough, else the target makes the block."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Law, root_only
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.tree import chain
from mmspec.core.verdict import Verdict

TARGET = 1000  # handles from here on are the target's own blocks


@dataclass
class RewardThreshold(Rule):
    """Relaxed: the output has no proven law. A threshold of infinity regenerates all, which is the target alone."""

    least: float
    name = "reward_threshold"
    exact = False
    proven_for = frozenset({("none", "none")})

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        return Weights((evidence.reward >= self.least).double(), "descend")

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        verdict.kind, verdict.redo = "regenerate", verdict.node == 0
        return verdict


@dataclass
class Film:
    """The target. reward[h]: quality of drafted block h.   blocks: per row, the handles that were kept."""

    reward: Tensor
    batch: int
    length: int
    made: int = 0
    blocks: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pending, self.blocks = torch.full((self.batch,), -1), [[] for _ in range(self.batch)]

    @property
    def done(self) -> bool:
        return len(self.blocks[0]) >= self.length

    @property
    def emitted(self) -> list[int]:
        return [len(row) for row in self.blocks]

    def prefill(self) -> tuple[Draft, Evidence]:
        draft = root_only(self.pending)  # nothing drafted: the film's first block is the target's own
        return draft, Evidence(reward=torch.zeros(draft.value.shape))

    def score(self, draft: Draft) -> Evidence:
        return Evidence(reward=self.reward[draft.value.clamp(0, len(self.reward) - 1)])

    def regenerate(self, draft: Draft, verdict: Verdict) -> Tensor:
        self.made += int(verdict.redo.sum())
        return TARGET + torch.arange(self.batch)

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        self.pending = torch.where(verdict.redo, verdict.correction, draft.value[:, -1])
        for row, block in zip(self.blocks, self.pending.tolist(), strict=True):
            row.append(block)
        return (~verdict.redo).long().tolist()


@dataclass(frozen=True)
class Sketcher:
    """Drafts one block a round: a handle drawn at random."""

    count: int
    name: str = "sketcher"
    passes: int = 0

    def open(self, target: Film) -> Sketcher:
        return self

    def propose(self, target: Film, keys: Keys) -> Draft:
        block = (keys.uniform(Purpose.DRAFT, 1) * self.count).long()
        return Draft(torch.cat([target.pending[:, None], block], 1), chain(1), Law("none"))

    def observe(self, target: Film, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        return None
