"""STAND: sampled trees from a table of the target's distributions after n-grams, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmspec.core.drafting.shapes import likeliest_tree
from mmspec.core.drafting.stored_laws import StoredLawTrees
from mmspec.core.round.draft import Draft
from mmspec.core.round.keys import Keys
from mmspec.io.validation import Size, check_fields
from mmspec.methods import method
from mmspec.vlm.drafters.ngram_laws import LawTable, NgramLawState, sizes_of
from mmspec.vlm.target import TextTarget

# the rate at which a node's child of rank 0, 1, ... is accepted: only the ratios shape the tree
HIT_RATES = (0.6, 0.15, 0.05, 0.02)


@method(
    "stand",
    domain="vlm",
    kind="drafter",
    title="STAND",
    exact=True,
    order=24,
    drafts=("sampled tree",),
    about="a tree drawn from the target's earlier distributions after n-grams",
    paper="Accelerated Test-Time Scaling with Model-Free Speculative Sampling",
)
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

    nodes: Size = 7
    depth: Size = 6
    max_ngram: int = 4
    min_ngram: int = 1
    width: int = 10
    drawn: Literal["without_replacement", "deterministic"] = "without_replacement"
    table: LawTable | None = None

    name = "stand"
    from_ids = True

    def __post_init__(self) -> None:
        check_fields(self)
        sizes_of(self)

    @property
    def template(self) -> tuple[int, ...]:
        """The parents of the tree, root first."""
        return likeliest_tree(self.nodes + 1, self.depth, HIT_RATES[: self.width])

    def open(self, target: TextTarget) -> StandState:
        return StandState(self, target)


class StandState(NgramLawState):
    def __init__(self, drafter: Stand, target: TextTarget):
        super().__init__(drafter.table, sizes_of(drafter), target)
        picks = target.greedy or drafter.drawn == "deterministic"
        self.trees = StoredLawTrees(drafter.template, drafter.width, picks, target.device)

    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        texts = [self.text(target, row) for row in range(target.batch)]
        return self.trees.draft(
            target, keys, lambda row, path: self.laws[row].find((*texts[row], *path)[-self.reach :])
        )
