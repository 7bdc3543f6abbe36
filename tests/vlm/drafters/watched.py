"""A drafter that remembers what it drafted, and models to draft with."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from mmspec.core.round.draft import Draft, Evidence, expand_tree
from tests.vlm.tiny import tiny


@dataclass
class Round:
    """One draft, what every row had generated before it, and the evidence it met."""

    draft: Draft
    tokens: list[list[int]]
    live: list[bool]
    evidence: Evidence | None = None

    def drafted(self, row: int) -> list[int]:
        """The valid drafted values of a live row; of a chain, the continuation."""
        if not self.live[row]:
            return []
        value = self.draft.value[row, 1:]
        return (value if self.draft.valid is None else value[self.draft.valid[row, 1:]]).tolist()


@dataclass
class Watched:
    """Wraps a drafter; `rounds` fills up while a request runs."""

    drafter: object
    rounds: list[Round] = field(default_factory=list)
    state: object = None

    @property
    def name(self) -> str:
        return self.drafter.name

    @property
    def levels(self) -> tuple[int, ...] | None:
        return getattr(self.drafter, "levels", None)

    @property
    def passes(self) -> int:
        return self.state.passes

    def open(self, target):
        self.state = self.drafter.open(target)
        return self

    def propose(self, target, keys):
        draft = self.state.propose(target, keys)
        self.rounds.append(Round(draft, copy.deepcopy(target.tokens), list(target.live)))
        return draft

    def observe(self, target, draft, evidence, verdict):
        if self.rounds:
            self.rounds[-1].evidence = evidence
        self.state.observe(target, draft, evidence, verdict)


@dataclass
class Planted(Watched):
    """Puts the target's true words on a path of what the drafter drafts, down to a depth that changes by round and row,
    and wrong ones everywhere else, so that every accept length comes up. `rounds` holds the drafts as they were.

    truth: per row, what the target says.   words: how many ids wrong ones are taken from.
    """

    truth: list[list[int]] = field(default_factory=list)
    words: int = 90

    def propose(self, target, keys):
        draft = super().propose(target, keys)
        depth, value = expand_tree(draft.tree.depth, target.batch).tolist(), draft.value.clone()
        for row in range(target.batch):
            path = draft.tree.path[min(row, len(draft.tree.path) - 1)]
            leaf = max(range(draft.tree.nodes), key=lambda n: depth[row][n])
            good = (len(self.rounds) + row) % (depth[row][leaf] + 1)
            right = path[leaf, 1 : good + 1].tolist()
            for node in range(1, draft.tree.nodes):
                at = min(len(target.tokens[row]) + depth[row][node], len(self.truth[row])) - 1
                word = self.truth[row][at]
                value[row, node] = word if node in right else (word + 1) % self.words
        return replace(draft, value=value)


def noisy(kind: str, noise: float = 0.1) -> nn.Module:
    """The tiny model of a kind with every matrix disturbed: it agrees with the original now and then."""
    model = copy.deepcopy(tiny(kind))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(11)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.add_(torch.randn_like(weight) * noise * weight.std())
    return model
