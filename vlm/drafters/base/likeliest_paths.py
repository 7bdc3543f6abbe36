"""Deterministic trees without a model: the likeliest continuations of a text, found best first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

import torch

from mmspec.core.round.draft import Draft, Law, root_only
from mmspec.core.round.tree import dynamic_tree
from mmspec.vlm.target import TextTarget

Place = TypeVar("Place")
# at a place of a source: its next tokens with their probabilities, the likeliest first, and the places behind them
Continuations = Callable[[Place], Iterable[tuple[int, float, Place]]]


@dataclass(slots=True)
class LikeliestPaths(Generic[Place]):
    """The tree of a row's likeliest paths, by cumulative probability. Since a path is at least as likely as its
    extensions, the search yields the `nodes` likeliest paths of the source."""

    nodes: int
    depth: int  # the most levels; 0 for a row without a draft
    least: float = 0.0  # the least cumulative probability of a node
    value: list[int] = field(default_factory=lambda: [0])  # the root's entry is 0
    parent: list[int] = field(default_factory=lambda: [0])  # of all nodes, root first
    levels: list[int] = field(default_factory=lambda: [0])  # the depths of all nodes

    def grow(self, start: Place, continuations: Continuations[Place]) -> LikeliestPaths[Place]:
        heap: list[tuple[float, int, int, int, Place]] = []
        order = count()  # of equal chances the earliest wins

        def open_node(node: int, chance: float, place: Place) -> None:
            if self.levels[node] == self.depth:
                return
            for token, share, behind in continuations(place):
                if chance * share < self.least:
                    break
                heapq.heappush(heap, (-chance * share, next(order), node, token, behind))

        open_node(0, 1.0, start)
        while heap and len(self.value) <= self.nodes:
            minus, _, parent, token, place = heapq.heappop(heap)
            self.value.append(token)
            self.parent.append(parent)
            self.levels.append(self.levels[parent] + 1)
            open_node(len(self.value) - 1, -minus, place)
        return self

    def paths(self) -> list[list[int]]:
        """Return the tokens of the paths to all leaves; the first takes the likeliest token at every node."""
        below: dict[int, list[int]] = {}
        for node in range(1, len(self.value)):
            below.setdefault(self.parent[node], []).append(node)

        def walk(node: int, path: list[int]) -> Iterator[list[int]]:
            if node not in below and path:
                yield path
            for child in below.get(node, ()):
                yield from walk(child, [*path, self.value[child]])

        return list(walk(0, []))


def draft_of_paths(target: TextTarget, rows: Sequence[LikeliestPaths]) -> Draft:
    """Return the deterministic draft of a tree per row; nodes beyond a row's own are invalid."""
    nodes, device = max(len(row.value) for row in rows), target.device
    if nodes == 1:
        return root_only(target.pending)
    value = torch.tensor([row.value + [0] * (nodes - len(row.value)) for row in rows], device=device)
    value[:, 0] = target.pending
    parent = torch.tensor([row.parent + [0] * (nodes - len(row.value)) for row in rows], device=device)
    sizes = torch.tensor([[len(row.value)] for row in rows], device=device)
    tree = dynamic_tree(parent, max(max(row.levels) for row in rows), nodes - 1)
    return Draft(value, tree, Law("deterministic"), torch.arange(nodes, device=device) < sizes)
