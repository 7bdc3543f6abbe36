"""STAND: sampled trees from a table of the target's distributions after n-grams, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Literal

import torch

from mmspec.core.draft import Draft, Law, root_only, without_tail
from mmspec.core.drafting.shapes import likeliest_tree
from mmspec.core.keys import Keys, Purpose
from mmspec.core.tree import static_tree
from mmspec.io.validation import check_fields
from mmspec.methods import method
from mmspec.vlm.drafters.ngram_laws import LawTable, Ngram, NgramLawState, StoredLaw, sizes_of
from mmspec.vlm.target import TextTarget

# the rate at which a node's child of rank 0, 1, ... is accepted: only the ratios shape the tree
HIT_RATES = (0.6, 0.15, 0.05, 0.02)
_UNKNOWN = StoredLaw((0,), (1.0,))  # recorded where nothing is drawn


@method(
    "stand", domain="vlm", kind="drafter", title="STAND", exact=True, order=24, drafts=("sampled tree",),
    about="a tree drawn from the target's earlier distributions after n-grams",
    paper="Accelerated Test-Time Scaling with Model-Free Speculative Sampling",
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class Stand:
    """Trees drawn from a table of the target's distributions after n-grams, without a model. Exact.

    Paper: "Accelerated Test-Time Scaling with Model-Free Speculative Sampling". The children of a node are drawn without
    replacement from the distribution stored for the last tokens of its path. A node whose n-grams are unknown is a leaf.
    Greedy requests take the likeliest tokens. Several answers to one prompt should share a table.

    Args:
        nodes: The drafted nodes of the tree.
        depth: The levels of the tree.
        max_ngram: The longest n-gram that is looked up.
        min_ngram: The shortest n-gram that is looked up.
        width: The tokens that are stored for an n-gram.
        drawn: How a sampled request gets its children: "without_replacement" draws them, "deterministic" takes the
            likeliest tokens, which rule "match" verifies.
        table: None gives every row of a request an empty table; all requests of this drafter share a LawTable.

    Raises:
        ValueError: A number is out of range, or the table has other sizes.
    """

    nodes: int = 7
    depth: int = 6
    max_ngram: int = 4
    min_ngram: int = 1
    width: int = 10
    drawn: Literal["without_replacement", "deterministic"] = "without_replacement"
    table: LawTable | None = None

    name = "stand"
    from_ids = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.drawn not in ("without_replacement", "deterministic"):
            raise ValueError(f"drawn: expected 'without_replacement' or 'deterministic', got {self.drawn!r}")
        sizes_of(self)
        if len(self.template) < 2:
            raise ValueError(f"nodes: expected at least 1, got {self.nodes}")

    @property
    def template(self) -> tuple[int, ...]:
        """The parents of the tree, root first."""
        return likeliest_tree(self.nodes + 1, self.depth, HIT_RATES[: self.width])

    def open(self, target: TextTarget) -> StandState:
        return StandState(self, target)


class StandState(NgramLawState):
    """The state of a request: its tables, and its trees cut to the known n-grams."""

    def __init__(self, drafter: Stand, target: TextTarget):
        super().__init__(drafter.table, sizes_of(drafter), target)
        self.template, self.width = drafter.template, drafter.width
        self.picks = target.greedy or drafter.drawn == "deterministic"
        self.tree = static_tree(self.template, target.device)
        self.depth, self.rank = self.tree.depth[0].tolist(), self.tree.sibling_rank[0].tolist()
        # the nodes with children, in the order of the recorded distributions
        self.inner = {node: place for place, node in enumerate(sorted(set(self.template)))}
        rows = [self.inner.get(node, -1) for node in range(len(self.template))]
        self.rows = torch.tensor(rows, device=target.device)

    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        rooms, noise = target.rooms(self.tree.max_depth), [None] * target.batch
        if not self.picks:  # the noise of all levels
            noise = keys.gumbel(Purpose.DRAFT, len(self.inner), self.width).tolist()
        rows = [_Growth(self, row, self.text(target, row), room, noise[row]) for row, room in enumerate(rooms)]
        if not any(growth.valid[1] for growth in rows):
            return root_only(target.pending)
        value = torch.tensor([growth.value for growth in rows], device=target.device)
        value[:, 0] = target.pending
        valid = torch.tensor([growth.valid for growth in rows], device=target.device)
        law = Law("deterministic") if self.picks else self._record([growth.laws for growth in rows], target.device)
        return without_tail(Draft(value, self.tree, law, valid), self.template)

    def _record(self, laws: Sequence[Sequence[StoredLaw]], device: torch.device) -> Law:
        """Return the stored distributions of the drawn nodes, which the softmax of their logarithms renormalises."""
        ids = [[(*law.ids, *[-1] * (self.width - len(law.ids))) for law in row] for row in laws]
        mass = [[(*law.mass, *[0.0] * (self.width - len(law.mass))) for law in row] for row in laws]
        scores = torch.tensor(mass, device=device).log()
        return Law("without_replacement", self.rows, scores, ids=torch.tensor(ids, device=device))


class _Growth:
    """The tree of a row: `value` and `valid` of each node, and `laws` of the nodes with children."""

    def __init__(self, state: StandState, row: int, text: Ngram, room: int, noise: Sequence[Sequence[float]] | None):
        count = len(state.template)
        self.value, self.valid = [0] * count, [True] + [False] * (count - 1)
        self.laws = [_UNKNOWN] * len(state.inner)
        texts, children = [text] * count, [()] * count
        for node, parent in enumerate(state.template):
            if node:
                rank = state.rank[node]
                if state.depth[node] > room or rank >= len(children[parent]):
                    continue
                self.value[node], self.valid[node] = children[parent][rank], True
                texts[node] = (*texts[parent], self.value[node])[-state.reach :]
            place = state.inner.get(node)
            law = None if place is None else state.laws[row].find(texts[node])
            if law is not None:
                self.laws[place] = law
                children[node] = law.ids if noise is None else _draws(law, noise[place])


def _draws(law: StoredLaw, noise: Sequence[float]) -> list[int]:
    """Return the tokens in the order in which they are drawn without replacement (Gumbel top-k)."""
    scores = [log(mass) + extra for mass, extra in zip(law.mass, noise, strict=False)]
    return [law.ids[place] for place in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)]
