from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from mmspec.core.round.batch_target import BatchTarget
from mmspec.core.round.draft import Draft, Law, root_only, without_tail
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.tree import static_tree

Ngram = tuple[int, ...]


@dataclass(slots=True)
class StoredLaw:
    """The mean of the target's distributions after an n-gram, over its likeliest tokens."""

    ids: Sequence[int]  # the likeliest first
    mass: Sequence[float]  # all above 0; the sum is below 1 where further tokens are possible
    count: int = 1  # distributions in the mean

    def add(self, ids: Sequence[int], mass: Sequence[float], width: int) -> None:
        share = 1 / (self.count + 1)
        total = {token: old * (1 - share) for token, old in zip(self.ids, self.mass, strict=True)}
        for token, new in zip(ids, mass, strict=True):
            total[token] = total.get(token, 0.0) + new * share
        self.ids = sorted(total, key=total.get, reverse=True)[:width]
        self.mass, self.count = [total[token] for token in self.ids], self.count + 1


class NgramLaws:
    """The distributions after n-grams, under fixed settings of sampling: `width` tokens for each of the `most` latest
    n-grams."""

    def __init__(self, max_ngram: int, min_ngram: int, width: int, most: int):
        self.sizes, self.width, self.most = range(max_ngram, min_ngram - 1, -1), width, most
        self.laws: dict[Ngram, StoredLaw] = {}

    def find(self, text: Ngram) -> StoredLaw | None:
        """Use the longest known n-gram at the end of a text; None if none is known."""
        for size in self.sizes:
            if size <= len(text) and (law := self.laws.get(text[-size:])) is not None:
                return law
        return None

    def store(self, text: Ngram, ids: Sequence[int], mass: Sequence[float]) -> None:
        for size in self.sizes:
            if size > len(text):
                continue
            law = self.laws.get(text[-size:])
            if law is not None:
                law.add(ids, mass, self.width)
                continue
            if len(self.laws) >= self.most:
                del self.laws[next(iter(self.laws))]
            self.laws[text[-size:]] = StoredLaw(ids, mass)


_UNKNOWN = StoredLaw((0,), (1.0,))  # recorded where nothing is drawn
FindLaw = Callable[[int, Ngram], StoredLaw | None]


class StoredLawTrees:
    """Trees over a template whose children come from stored distributions of at most `width` values; a node without any
    is a leaf. `picks`: children are the likeliest values instead of draws without replacement."""

    def __init__(self, template: Sequence[int], width: int, picks: bool, device: torch.device):
        self.template, self.width, self.picks = template, width, picks
        self.tree = static_tree(template, device)
        self.depth, self.rank = self.tree.depth[0].tolist(), self.tree.sibling_rank[0].tolist()
        # the nodes with children, in the order of the recorded distributions
        self.inner = {node: place for place, node in enumerate(sorted(set(template)))}
        rows = [self.inner.get(node, -1) for node in range(len(template))]
        self.rows = torch.tensor(rows, device=device)

    def draft(self, target: BatchTarget, keys: Keys, find: FindLaw) -> Draft:
        """`find` maps a row and the drafted values below its root to the distribution of the next value, None where
        unknown."""
        rooms, noise = target.rooms(self.tree.max_depth), [None] * target.batch
        if not self.picks:  # the noise of all levels
            noise = keys.gumbel(Purpose.DRAFT, len(self.inner), self.width).tolist()
        rows = [_Growth(self, row, room, noise[row], find) for row, room in enumerate(rooms)]
        if not any(growth.valid[1] for growth in rows):
            return root_only(target.pending)
        value = torch.tensor([growth.value for growth in rows], device=target.device)
        value[:, 0] = target.pending
        valid = torch.tensor([growth.valid for growth in rows], device=target.device)
        law = Law("deterministic") if self.picks else self.record([growth.laws for growth in rows], target.device)
        return without_tail(Draft(value, self.tree, law, valid), self.template)

    def record(self, laws: Sequence[Sequence[StoredLaw]], device: torch.device) -> Law:
        ids = [[(*law.ids, *[-1] * (self.width - len(law.ids))) for law in row] for row in laws]
        mass = [[(*law.mass, *[0.0] * (self.width - len(law.mass))) for law in row] for row in laws]
        scores = torch.tensor(mass, device=device).log()
        return Law("without_replacement", self.rows, scores, ids=torch.tensor(ids, device=device))


class _Growth:
    def __init__(
        self, trees: StoredLawTrees, row: int, room: int, noise: Sequence[Sequence[float]] | None, find: FindLaw
    ):
        count = len(trees.template)
        self.value, self.valid = [0] * count, [True] + [False] * (count - 1)
        self.laws = [_UNKNOWN] * len(trees.inner)
        paths, children = [()] * count, [()] * count
        for node, parent in enumerate(trees.template):
            if node:
                rank = trees.rank[node]
                if trees.depth[node] > room or rank >= len(children[parent]):
                    continue
                self.value[node], self.valid[node] = children[parent][rank], True
                paths[node] = (*paths[parent], self.value[node])
            place = trees.inner.get(node)
            law = None if place is None or trees.depth[node] >= room else find(row, paths[node])
            if law is not None:
                self.laws[place] = law
                children[node] = law.ids if noise is None else _draws(law, noise[place])


def _draws(law: StoredLaw, noise: Sequence[float]) -> list[int]:
    """Draw in order without replacement (Gumbel top-k)."""
    scores = [log(mass) + extra for mass, extra in zip(law.mass, noise, strict=False)]
    return [law.ids[place] for place in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)]


def likeliest(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens of scores [B, N, V] and their probabilities, [B, N, width] each."""
    best, ids = scores.topk(min(width, scores.shape[-1]), -1)
    return ids, (best - scores.logsumexp(-1, keepdim=True)).exp_()
