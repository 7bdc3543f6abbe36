"""DiffuSpec: the best path through the lattice of a block drafter, by its distributions and the target's n-grams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from mmspec.core.drafting.growth import draft_of_chain
from mmspec.core.drafting.guided import guide_of
from mmspec.core.drafting.lattice import LatticeSearch, best_path
from mmspec.core.drafting.pair_state import PairState
from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.methods import MethodParts, method
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.ngram_laws import LawTable, NgramLawState
from mmspec.vlm.target import TextTarget

ORDERS = (2, 1)  # the n-grams before a token: a pair, or the last token alone


@method(
    "diffuspec",
    domain="vlm",
    kind="drafter",
    title="DiffuSpec",
    exact=True,
    needs=("weights",),
    order=28,
    takes=LatticeSearch,
    drafts=("n-grams",),
    steps=("block", 5, 5),
    about="the best path through a block's likely tokens, by the drafter and by n-grams of the target",
    paper="DiffuSpec: Unlocking Diffusion Language Models for Speculative Decoding",
)
class DiffuSpec:
    """Chains that a beam search finds in the distributions of a block drafter. Exact with the rules "exact" and "match".

    "DiffuSpec: Unlocking Diffusion Language Models for Speculative Decoding". The n-grams come from the target's own
    distributions at earlier nodes in place of a corpus. The drafts are those of the block's length: the lengths of the
    paper are for blocks of 20 to 30 tokens.

    Args:
        drafter: A drafter whose block is a single pass, such as DFlash or DSpark.
        search: The settings of the search.
        table: A table of pairs that requests share, `LawTable(2, 1)`; None for an empty table per row.

    Raises:
        ValueError: The drafter is of another kind, or the table has other n-grams.
    """

    def __init__(self, drafter: ShapedDrafter, search: LatticeSearch | None = None, table: LawTable | None = None):
        if not isinstance(drafter, ShapedDrafter) or drafter.steps[0] != "block":
            raise ValueError(
                f"drafter: expected a drafter of blocks such as DFlash or DSpark, got {type(drafter).__name__}; "
                "use another"
            )
        if table is not None and table.sizes[:2] != ORDERS:
            raise ValueError(
                f"table: expected max_ngram {ORDERS[0]} and min_ngram {ORDERS[1]}, got {table.sizes[:2]}; make "
                f"it as LawTable({ORDERS[0]}, {ORDERS[1]})"
            )
        self.drafter, self.search, self.table = drafter, LatticeSearch() if search is None else search, table
        self.name = f"diffuspec({drafter.name})"

    @classmethod
    def make(cls, settings: dict[str, Any], parts: MethodParts) -> Self:
        """Return `DiffuSpec` over an available drafter, with the settings of its search."""
        return cls(parts.part("weights"), LatticeSearch(**settings))

    @property
    def levels(self) -> tuple[object, ...] | None:
        """The target's states that the drafter reads."""
        return self.drafter.levels

    def open(self, target: TextTarget) -> DiffuSpecState:
        return DiffuSpecState(self, self.drafter.open(target), target)

    def open_without_prefill(self, target: TextTarget) -> DiffuSpecState:
        """Return the state of a request whose prompt is read before the first draft."""
        return DiffuSpecState(self, self.drafter.open_without_prefill(target), target)


class DiffuSpecState:
    def __init__(self, control: DiffuSpec, inner: PairState, target: TextTarget):
        self.control, self.inner, self.deepest = control, inner, inner.deepest
        sizes = (*ORDERS, control.search.most) if control.table is None else control.table.sizes
        self.ngrams = NgramLawState(control.table, sizes, target)

    @property
    def passes(self) -> int:
        return self.inner.passes

    def follow(self, target: TextTarget) -> DiffuSpecState:
        """Return the state of a follow-up request, with an empty table unless requests share a table."""
        return DiffuSpecState(self.control, self.inner.follow(target), target)

    @torch.no_grad()
    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        depth = self.deepest if longest is None else min(self.deepest, longest)
        rooms = target.rooms(depth)
        if not any(rooms):
            return root_only(target.pending)
        self.inner.ready(depth)
        texts, known = [self.ngrams.text(target, row) for row in range(target.batch)], self.ngrams.laws

        def prior(row: int, path: Sequence[int]) -> Mapping[int, float] | None:
            law = known[row].find((*texts[row], *path))
            return None if law is None else dict(zip(law.ids, law.mass, strict=True))

        path = best_path(self.inner, target, self.control.search, prior, rooms, guide_of(target))
        room = torch.tensor(rooms, device=target.device)
        valid: list[Tensor] = [] if min(rooms) == max(rooms) else [step < room for step in range(max(rooms))]
        return draft_of_chain(target, list(path.unbind(1)), [], valid)

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.inner.observe(target, draft, evidence, verdict)
        self.ngrams.observe(target, draft, evidence, verdict)
