"""Blocks under a reward: a drafted block is kept when it is judged good enough, else the target makes the block."""

import torch
from torch import Tensor

from mmspec.core import Draft, Evidence, Keys, Law, Memoryless, Purpose, Rule, Verdict, Weights, chain, root_only

TARGET = 1000  # handles from here on are the target's own blocks


class RewardThreshold(Rule):
    """Relaxed: the output has no proven law. A threshold of infinity regenerates all, which is the target alone."""

    name, exact, proven_for, reads = "reward_threshold", False, frozenset({("none", "none")}), "reward"

    def __init__(self, least: float):
        self.least = least

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        return Weights((evidence.reward >= self.least).double(), "descend")

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        verdict.kind, verdict.redo = "regenerate", verdict.node == 0
        return verdict


class Film:
    """The target. reward[h]: quality of drafted block h.   blocks: per row, the handles that were kept."""

    def __init__(self, reward: Tensor, batch: int, length: int):
        self.reward, self.batch, self.length, self.made, self.verdicts = reward, batch, length, 0, ("regenerate",)
        self.pending, self.blocks = torch.full((batch,), -1), [[] for _ in range(batch)]

    done = property(lambda self: len(self.blocks[0]) >= self.length)
    emitted = property(lambda self: [len(row) for row in self.blocks])

    def prefill(self) -> tuple[Draft, Evidence]:  # nothing drafted: the film's first block is the target's own
        return root_only(self.pending), Evidence(reward=torch.zeros(self.batch, 1))

    def score(self, draft: Draft) -> Evidence:
        return Evidence(reward=self.reward[draft.value.clamp(0, len(self.reward) - 1)])

    def regenerate(self, draft: Draft, verdict: Verdict) -> Tensor:
        self.made += int(verdict.redo.sum())
        return TARGET + torch.arange(self.batch)

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        self.pending = torch.where(verdict.redo, verdict.correction, draft.value[:, -1])
        self.blocks = [[*row, block] for row, block in zip(self.blocks, self.pending.tolist(), strict=True)]
        return (~verdict.redo).long().tolist()


class Sketcher(Memoryless):  # drafts one block a round: a handle drawn at random
    def __init__(self, count: int):
        self.count = count

    def propose(self, target: Film, keys: Keys) -> Draft:
        block = (keys.uniform(Purpose.DRAFT, 1) * self.count).long()
        return Draft(torch.cat([target.pending[:, None], block], 1), chain(1), Law("none"))
