"""Drafts that grow node by node: a policy reads everything drawn so far and names the parent of the next draw."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.certify.enumeration import Tables
from mmspec.core.round.draft import Draft, Drawn, Law
from mmspec.core.round.tree import chain, dynamic_tree


@dataclass(frozen=True, slots=True)
class History:
    """The nodes drawn so far, root first. `share` is the chance with which a node's token was drawn, 1 at the root."""

    parent: tuple[int, ...] = (0,)
    token: tuple[int, ...] = (0,)
    share: tuple[float, ...] = (1.0,)

    def children(self, node: int) -> list[int]:
        return [child for child in range(1, len(self.parent)) if self.parent[child] == node]

    def prefix(self, node: int) -> list[int]:
        return [*self.prefix(self.parent[node]), self.token[node]] if node else []

    def law(self, q: Tables, node: int, drawn: Drawn = "without_replacement") -> Tensor:
        """The unnormalised distribution of the node's next child, float64 [V]; 0 everywhere behind the last table."""
        prefix, code = self.prefix(node), 0
        if len(prefix) == len(q):
            return torch.zeros_like(q[0][0])
        for token in prefix:
            code = code * q[0].shape[-1] + token
        law = q[len(prefix)][code].clone()
        if drawn == "without_replacement":
            law[[self.token[child] for child in self.children(node)]] = 0
        return law

    def reached(self, node: int) -> float:
        """The chance that verification gets to the node's next child, if q stands for the acceptance ("DySpec")."""
        chance = 1.0
        for child in self.children(node):
            chance *= 1 - self.share[child]
        while node:
            for sibling in self.children(self.parent[node]):
                chance *= 1 - self.share[sibling] if sibling < node else 1.0
            chance *= self.share[node]
            node = self.parent[node]
        return chance

    def without(self, dropped: set[int]) -> History:
        """The history as if these nodes, with all their descendants, had never been drawn."""
        kept = [node for node in range(len(self.parent)) if node not in dropped]
        parent = tuple(kept.index(self.parent[node]) for node in kept)
        return History(parent, tuple(self.token[node] for node in kept), tuple(self.share[node] for node in kept))


Policy = Callable[[History, Tables], int | None]


def open_nodes(history: History, q: Tables) -> list[int]:
    return [node for node in range(len(history.parent)) if history.law(q, node).sum() > 1e-12]


def best_first(nodes: int, floor: float = 0.0) -> Policy:
    """Heap growth with a budget: the draw that is reached with the largest chance comes next, while it exceeds the floor."""

    def policy(history: History, q: Tables) -> int | None:
        best = max(open_nodes(history, q), key=history.reached, default=None)
        return None if best is None or len(history.parent) > nodes or history.reached(best) <= floor else best

    return policy


def at_random(seed: int, nodes: int) -> Policy:
    """A parent, or an early end, that is an arbitrary function of everything drawn so far in any branch."""

    def policy(history: History, q: Tables) -> int | None:
        dice = random.Random(f"{seed} {history.parent} {history.token}")
        free = open_nodes(history, q)
        ends = len(history.parent) > nodes or not free or dice.random() < 0.15
        return None if ends else dice.choice(free)

    return policy


def confident_chain(longest: int, least: float) -> Policy:
    """A chain that ends where the largest probability of the distribution ahead is below `least`."""

    def policy(history: History, q: Tables) -> int | None:
        last = len(history.parent) - 1
        return last if last < longest and float(history.law(q, last).max()) >= least else None

    return policy


def every_growth(
    policy: Policy, q: Tables, drawn: Drawn = "without_replacement", cut: Callable[[History], History] | None = None
) -> tuple[Draft, Tensor]:
    """Every draft of a policy with its probability, float64 [R].   cut: a change behind the last draw, for mutants."""
    ended: list[tuple[History, float]] = []
    growing = [(History(), 1.0)]
    while growing:
        history, chance = growing.pop()
        parent = policy(history, q)
        if parent is None:
            ended.append((history, chance))
            continue
        law = history.law(q, parent, drawn)
        law = law / law.sum()
        for token in law.nonzero()[:, 0].tolist():
            share = float(law[token])
            grown = History((*history.parent, parent), (*history.token, token), (*history.share, share))
            growing.append((grown, chance * share))
    histories = [history if cut is None else cut(history) for history, _ in ended]
    return _batch(histories, q, drawn), torch.tensor([chance for _, chance in ended], dtype=torch.float64)


def _batch(histories: list[History], q: Tables, drawn: Drawn) -> Draft:
    nodes = max(len(history.parent) for history in histories)
    spare = [nodes - len(history.parent) for history in histories]
    value, parent = (
        torch.tensor([[*row, *[0] * left] for row, left in zip(rows, spare, strict=True)])
        for rows in ([h.token for h in histories], [h.parent for h in histories])
    )
    valid = torch.tensor([[True] * len(h.parent) + [False] * left for h, left in zip(histories, spare, strict=True)])
    flat = torch.full_like(q[0][0], 1 / q[0].shape[-1])
    laws = [
        [
            flat if node >= len(h.parent) or len(h.prefix(node)) == len(q) else h.law(q, node, "with_replacement")
            for node in range(nodes)
        ]
        for h in histories
    ]
    straight = all(h.parent == tuple(max(node - 1, 0) for node in range(len(h.parent))) for h in histories)
    tree = chain(nodes - 1) if straight else dynamic_tree(parent, len(q), nodes - 1)
    scores = torch.stack([torch.stack(row) for row in laws]).log()
    return Draft(value, tree, Law(drawn, torch.arange(nodes), scores), valid)
