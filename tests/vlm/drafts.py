"""Drafters for tests: one knows the answer and plants errors at known depths, one draws from a table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.tree import Tree, chain, dynamic_tree, static_tree

STATIC = (0, 0, 0, 0, 1, 1, 2, 4, 4, 6, 7, 9)  # depth 4, ragged
SHAPES = ("chain", "static", "dynamic")


@dataclass(frozen=True)
class Scripted:
    """Drafts `truth[b]`, row b's true continuation, on a path of the tree down to a depth that changes each round.

    shape: "chain" (5 values), "static" (`STATIC`), or "dynamic" (a random tree per row and round).
    invalid: marks some nodes invalid, right ones among them.
    """

    truth: list[list[int]]
    shape: str = "chain"
    invalid: bool = False
    vocab: int = 101
    name: str = "scripted"

    def open(self, target: object) -> Script:
        return Script(self)


class Script:
    passes = 0

    def __init__(self, plan: Scripted):
        self.plan, self.round = plan, 0

    def propose(self, target: object, keys: object) -> Draft:
        self.round += 1
        rng = torch.Generator().manual_seed(1000 + self.round)
        tree = self._tree(target.batch, rng)
        rows = [self._row(target, tree, row, rng) for row in range(target.batch)]
        valid = None
        if self.plan.invalid:
            valid = torch.rand(target.batch, tree.nodes, generator=rng) < 0.85
        return Draft(torch.tensor(rows), tree, Law("deterministic"), valid)

    def observe(self, target: object, draft: Draft, evidence: object, verdict: object) -> None:
        return None

    def _tree(self, batch: int, rng: torch.Generator) -> Tree:
        if self.plan.shape == "chain":
            return chain(5)
        if self.plan.shape == "static":
            return static_tree(STATIC)
        return random_tree(batch, 9, rng)

    def _row(self, target: object, tree: Tree, row: int, rng: torch.Generator) -> list[int]:
        """Values of one row: a random leaf's path is right down to a random depth, everything else is wrong."""
        parent, depth = (t[min(row, len(t) - 1)].tolist() for t in (tree.parent, tree.depth))
        path = tree.path[min(row, len(tree.path) - 1), int(torch.randint(tree.nodes, (), generator=rng))].tolist()
        right = int(torch.randint(tree.max_depth + 1, (), generator=rng))
        done, truth = len(target.tokens[row]), self.plan.truth[row]
        values, taken = [int(target.pending[row])], {}
        for node in range(1, tree.nodes):
            index = done + depth[node] - 1
            best = truth[index] if index < len(truth) else 5
            if node in path and depth[node] <= right:
                value = best
            else:
                taken[parent[node]] = taken.get(parent[node], 0) + 1
                value = (best + 7 * taken[parent[node]]) % self.plan.vocab
            values.append(value)
        return values


def random_tree(batch: int, nodes: int, rng: torch.Generator, max_depth: int = 5) -> Tree:
    """A tree per row: parents drawn at random among the last four nodes, depth at most `max_depth`."""
    rows = []
    for _ in range(batch):
        parent, depth = [0], [0]
        for node in range(1, nodes):
            at = int(torch.randint(max(node - 4, 0), node, (), generator=rng))
            at = at if depth[at] < max_depth else 0
            parent.append(at)
            depth.append(depth[at] + 1)
        rows.append(parent)
    return dynamic_tree(torch.tensor(rows), max_depth, nodes - 1)


def continuation(sequences: Tensor, length: int) -> list[list[int]]:
    """What was generated behind prompts of `length` ids."""
    return [row[length:].tolist() for row in sequences]


@dataclass(frozen=True)
class Bigram:
    """Draws from a table of log-weights [V, V] given the token before: siblings without replacement, q on record."""

    table: Tensor
    parents: tuple[int, ...] = (0, 0, 1, 2)
    name: str = "bigram"
    passes: int = 0

    def open(self, target: object) -> Bigram:
        return self

    def propose(self, target: object, keys: Keys) -> Draft:
        tree, size = static_tree(self.parents), self.table.shape[0]
        value = target.pending[:, None].repeat(1, tree.nodes)
        noise = keys.gumbel(Purpose.DRAFT, tree.nodes, size)
        for node in range(tree.nodes):
            order = (self.table[value[:, node]] + noise[:, node]).argsort(-1, descending=True)
            for child in (n for n in range(1, tree.nodes) if self.parents[n] == node):
                value[:, child] = order[:, tree.sibling_rank[0, child]]
        row = torch.tensor([n if n in self.parents else -1 for n in range(tree.nodes)])
        return Draft(value, tree, Law("without_replacement", row, self.table[value]))

    def observe(self, target: object, draft: Draft, evidence: object, verdict: object) -> None:
        return None
