"""ADED: the likeliest paths of a trigram model that learns from the target's distributions, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from mmspec.core.round.draft import Draft
from mmspec.core.round.keys import Keys
from mmspec.io.validation import Range, Size, check_fields
from mmspec.methods import method
from mmspec.vlm.drafters.base.likeliest_paths import LikeliestPaths, draft_of_paths
from mmspec.vlm.drafters.ngram_laws import LawTable, Ngram, NgramLawState, sizes_of
from mmspec.vlm.target import TextTarget


@method(
    "aded",
    domain="vlm",
    kind="drafter",
    title="ADED",
    exact=True,
    order=25,
    drafts=("dynamic tree",),
    about="the likeliest paths of a trigram model of the target's earlier distributions",
    paper="Adaptive Draft-Verification for Efficient Large Language Model Decoding",
)
@dataclass(frozen=True, slots=True)
class Aded:
    """The likeliest paths of a trigram model, without a neural model. Deterministic, so exact.

    Paper: "Adaptive Draft-Verification for Efficient Large Language Model Decoding". The paper counts the trigrams of a
    corpus and searches by Monte Carlo. Here the trigram model is the mean of the target's own distributions after two
    tokens, as in STAND, and the search is best first, the limit of a long Monte Carlo search.

    Args:
        nodes: The most drafted nodes.
        depth: The most levels.
        least: The least cumulative probability of a node. A pass costs less with fewer nodes.
        ngram: The tokens that are looked up, 2 for trigrams.
        width: The tokens that are stored for an n-gram.
        table: None gives every row of a request an empty table; all requests of this drafter share a LawTable.

    Raises:
        ValueError: A number is out of range, or the table has other sizes.
    """

    nodes: Size = 8
    depth: Size = 8
    least: Annotated[float, Range(0, below=1)] = 0.05
    ngram: int = 2
    width: int = 10
    table: LawTable | None = None

    name = "aded"
    from_ids = True

    def __post_init__(self) -> None:
        check_fields(self)
        sizes_of(self)

    @property
    def max_ngram(self) -> int:
        """The longest n-gram of the table."""
        return self.ngram

    @property
    def min_ngram(self) -> int:
        """The shortest n-gram of the table."""
        return self.ngram

    def open(self, target: TextTarget) -> AdedState:
        return AdedState(self, target)


class AdedState(NgramLawState):
    def __init__(self, drafter: Aded, target: TextTarget):
        super().__init__(drafter.table, sizes_of(drafter), target)
        self.nodes, self.deepest, self.least = drafter.nodes, drafter.depth, drafter.least

    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        rooms = target.rooms(self.deepest if longest is None else min(longest, self.deepest))
        return draft_of_paths(
            target,
            [
                LikeliestPaths(self.nodes, room, self.least).grow((row, self.text(target, row)), self._continuations)
                for row, room in enumerate(rooms)
            ],
        )

    def _continuations(self, place: tuple[int, Ngram]) -> Iterator[tuple[int, float, tuple[int, Ngram]]]:
        row, text = place
        law = self.laws[row].find(text)
        if law is not None:
            for token, mass in zip(law.ids, law.mass, strict=True):
                yield token, mass, (row, (*text, token)[-self.reach :])
