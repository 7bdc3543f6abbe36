"""RASD: several copied continuations beside a trained drafter's tree, pruned by the drafter's first step."""

from __future__ import annotations

from typing import Literal

from mmspec.core.drafting.merge import Paths
from mmspec.core.drafting.picks import values_of
from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.round.draft import Draft
from mmspec.io.validation import whole
from mmspec.methods import MethodParts, method, value_of
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.merged import Merged, MergedState, Retrieval, retrieval_of
from mmspec.vlm.target import TextTarget


class FusedState(MergedState):
    control: Fused

    def paths(self, target: TextTarget, longest: int | None) -> list[Paths]:
        return self.copies.branches(target, self.control.branches, longest)

    def joining(self, paths: list[Paths], drawn: Draft, alone: list[bool]) -> list[Paths]:
        likely = self.likely(drawn)
        return [
            branches[:1] if single else [path for path in branches if path[0] in first]
            for branches, single, first in zip(paths, alone, likely, strict=True)
        ]

    def likely(self, drawn: Draft) -> list[set[int]]:
        law, state = drawn.law, self.inner
        if state.root is None:  # no row has room for a draft
            return [set() for _ in range(drawn.batch)]
        if law.scores is None:
            scores, ids = state.logits(state.root[:, None], 1)[:, 0], state.ids
        else:
            scores, ids = law.scores[:, law.row[0]], law.ids
        best = scores.topk(min(self.control.keep, scores.shape[-1]), -1).indices
        return [set(row) for row in values_of(best, ids).tolist()]


class Fused(Merged):
    """`Merged` with several continuations of a match, those that the drafter's first step finds plausible. "RASD:
    Retrieval-Augmented Speculative Decoding". At most `branches` continuations a row form a trie, merged with the
    drafter's tree by common prefixes. A branch stays if its first token is among the drafter's `keep` likeliest. Copies
    are added up to `most` nodes, root included; None for no limit. `retrieval` None is `PromptLookup(longest=16,
    doubling=True)`. The pruning reads a distribution and no draw, so it is exact like `Merged`."""

    state = FusedState

    def __init__(
        self,
        drafter: ShapedDrafter,
        retrieval: Retrieval | None = None,
        *,
        alone_from: int | None = 8,
        branches: int = 4,
        keep: int = 8,
        most: int | None = None,
    ):
        super().__init__(drafter, retrieval, alone_from=alone_from)
        self.branches, self.keep = whole("branches", branches, 1), whole("keep", keep, 1)
        self.most = None if most is None else whole("most", most, 1)
        self.name = f"fused({self.retrieval.name}, {drafter.name})"


@method(
    "fused",
    domain="vlm",
    kind="drafter",
    title="RASD",
    exact=True,
    needs=("weights",),
    order=24,
    drafts=("dynamic tree", "sampled tree with copies"),
    steps=("levels", 1, 2),
    about="several copied continuations and a trained drafter in one tree",
    paper="RASD: Retrieval-Augmented Speculative Decoding",
)
def fused(
    parts: MethodParts,
    chain: int = 0,
    nodes: int = 0,
    depth: int = 7,
    width: int = 4,
    shape: str | None = None,
    alone_from: int | None = 8,
    branches: int = 4,
    keep: int = 8,
    most: int | None = None,
    memory: Literal["lookup", "suffix"] = "lookup",
) -> Fused:
    """Return `Fused` over a trained drafter.

    Args:
        parts: The model and the trained drafter, "weights".
        chain: The tokens of the drafter's chain.
        nodes: The nodes of the drafter's dynamic tree.
        depth: The levels of that tree.
        width: The nodes expanded in a level of that tree.
        shape: The shape of its drafts in place of these, such as (best:nodes=16).
        alone_from: The length of a match from which a draft is the latest copied continuation alone.
        branches: The most copied continuations of a draft.
        keep: The number of the drafter's likeliest next tokens with which a copy may begin.
        most: The most nodes of a draft at which no more copies are added.
        memory: The source of continuations: prompt lookup, or the likeliest by suffix lookup.
    """
    drafter = parts.part("weights")
    shape = shape_of(chain, nodes, depth, width, shape=value_of(shape, "vlm", "shape", parts))
    shaped = drafter if shape is None else drafter.with_shape(shape)
    return Fused(shaped, retrieval_of(memory), alone_from=alone_from, branches=branches, keep=keep, most=most)
