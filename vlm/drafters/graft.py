"""Graft: a drafter that stops where it is unsure, and tokens of a recycling table in the nodes that it leaves."""

from __future__ import annotations

from dataclasses import replace

from mmspec.core.drafting.merge import Paths, with_copied_paths
from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.drafting.shapes import DynamicTree, likeliest_tree
from mmspec.core.drafting.tree_stop import TreeStops
from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DraftState
from mmspec.io.validation import whole
from mmspec.methods import MethodParts, method
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.merged import DrafterWithMemory, StateWithMemory
from mmspec.vlm.drafters.token_recycling import HIT_RATES, RecyclingState, RecyclingTable, TokenRecycling
from mmspec.vlm.target import TextTarget

# the levels at which a tree may stop, and the shares of its nodes that the drafter then keeps
STAGES = ((1, 8 / 60), (2, 24 / 60), (6, 40 / 60))


class GraftState(StateWithMemory):
    control: Graft

    def __init__(self, control: Graft, inner: DraftState, target: TextTarget):
        super().__init__(control, inner, target)
        self.retrieval: RecyclingState = control.recycling.open(target)
        self.deepest = max(inner.deepest, self.retrieval.tree.max_depth)

    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        drawn, most = self.inner.propose(target, keys, longest), self.control.nodes + 1
        if drawn.tree.nodes >= most and drawn.valid is None:
            return drawn
        return with_copied_paths(drawn, self.retrieved(target, longest), [False] * target.batch, most)

    def retrieved(self, target: TextTarget, longest: int | None) -> list[Paths]:
        """Return per row the path of every node of the table's tree, the likeliest first."""
        depth = self.deepest if longest is None else longest
        parent = self.retrieval.tree.parent[0].tolist()
        value, valid = self.retrieval.fill(target.pending, target.rooms(depth))
        paths = []
        for tokens, known in zip(value.tolist(), valid.tolist(), strict=True):
            path: dict[int, list[int]] = {0: []}
            for node in range(1, len(parent)):
                if known[node]:
                    path[node] = [*path[parent[node]], tokens[node]]
            paths.append(list(path.values())[1:])
        return paths

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        super().observe(target, draft, evidence, verdict)
        self.retrieval.observe(target, draft, evidence, verdict)


class Graft(DrafterWithMemory):
    """A trained drafter and a recycling table that share `nodes` nodes, without the root. "Graft: Draft Less, Retrieve
    More". A tree stops at a checkpoint where the drafter gives no path a chance of `least`; 0 never stops. It keeps its
    best nodes, and the table, by default empty per row, fills the rest before anything is drawn. Nodes whose token the
    table does not know stay unused. Drawn nodes all stay, since a draw must not be dropped. Exact with the rules
    "exact", "traversal", "recursive" and "match"."""

    state = GraftState

    def __init__(
        self, drafter: ShapedDrafter, table: RecyclingTable | None = None, *, nodes: int = 24, least: float = 0.1
    ):
        super().__init__(drafter)
        if not 0 <= least <= 1:
            raise ValueError(f"least: expected a chance from 0 to 1, got {least}")
        self.nodes, self.least = whole("nodes", nodes, 1), least
        shape, sampled = drafter.shapes
        if isinstance(shape, DynamicTree):
            stops = TreeStops((level, least, "best", max(int(nodes * share), 1)) for level, share in STAGES)
            most = min(nodes, DynamicTree.pool(shape.depth, shape.width))
            shape = replace(shape, nodes=most, stop=stops)
        self.drafter = drafter.with_shape(shape, sampled)
        # half as many nodes again, since tokens that the drafter has too take no node
        template = likeliest_tree(1 + nodes + nodes // 2, 5, HIT_RATES)
        self.recycling = TokenRecycling(width=len(HIT_RATES), template=template, table=table)
        self.name = f"graft({self.recycling.name}, {drafter.name})"


@method(
    "graft",
    domain="vlm",
    kind="drafter",
    title="Graft",
    exact=True,
    needs=("weights",),
    order=25,
    drafts=("dynamic tree", "sampled tree with copies"),
    steps=("levels", 1, 2),
    about="a trained drafter that stops early, and recycled tokens in the free nodes",
    paper="Graft: Draft Less, Retrieve More",
)
def graft(
    parts: MethodParts, chain: int = 0, nodes: int = 24, depth: int = 7, width: int = 4, least: float = 0.1
) -> Graft:
    """Return `Graft` over a trained drafter.

    Args:
        parts: The model and the trained drafter, "weights".
        chain: The tokens of the drafter's chain; 0 for a dynamic tree.
        nodes: The nodes of a draft from both sources.
        depth: The levels of the drafter's dynamic tree.
        width: The nodes expanded in a level of that tree.
        least: The chance that a path needs for the tree to grow on.
    """
    drafter = parts.part("weights")
    shape = shape_of(chain, 0) if chain else DynamicTree(min(nodes, DynamicTree.pool(depth, width)), depth, width)
    return Graft(drafter.with_shape(shape, None if chain else drafter.shapes[1]), nodes=nodes, least=least)
