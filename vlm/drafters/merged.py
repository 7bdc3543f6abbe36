"""Two sources of drafts in a single tree: a continuation copied from the text, and a trained drafter."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from mmspec.core.drafting.merge import Paths, with_copied_paths
from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.drafting.shapes import DynamicTree, Shape, StaticTree
from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DraftState
from mmspec.core.round.tree import chain
from mmspec.io.validation import whole
from mmspec.methods import MethodParts, method, value_of
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.prompt_lookup import LookupState, PromptLookup
from mmspec.vlm.drafters.suffix_lookup import SuffixIndex, SuffixLookup, SuffixState
from mmspec.vlm.target import TextTarget

Retrieval = PromptLookup | SuffixLookup


class StateWithMemory:
    def __init__(self, control: DrafterWithMemory, inner: DraftState, target: TextTarget):
        self.control, self.inner = control, inner

    @property
    def passes(self) -> int:
        return self.inner.passes

    def follow(self, target: TextTarget) -> Self:
        """Return the state of a follow-up request; the memory reads the text again, unless requests share it."""
        return type(self)(self.control, self.inner.follow(target), target)

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.inner.observe(target, draft, evidence, verdict)


class DrafterWithMemory:
    """Adds the tokens of a memory to drafts that grow level by level: the EAGLE family, heads, blocks."""

    state: ClassVar[type[StateWithMemory]]

    def __init__(self, drafter: ShapedDrafter):
        if not isinstance(drafter, ShapedDrafter):
            raise ValueError(f"drafter: expected a trained drafter such as EAGLE-3, got {type(drafter).__name__}")
        self.drafter = drafter

    @property
    def levels(self) -> tuple[object, ...] | None:
        return self.drafter.levels

    def open(self, target: TextTarget) -> StateWithMemory:
        return self.state(self, self.drafter.open(target), target)

    def open_without_prefill(self, target: TextTarget) -> StateWithMemory:
        return self.state(self, self.drafter.open_without_prefill(target), target)


class MergedState(StateWithMemory):
    """`skipped` counts the rounds that skipped the drafter's steps."""

    control: Merged

    def __init__(self, control: Merged, inner: DraftState, target: TextTarget):
        super().__init__(control, inner, target)
        self.skipped = 0
        self.copies: LookupState | SuffixState = control.retrieval.open(target)
        self.deepest = max(self.copies.deepest, inner.deepest)
        shape = control.drafter.shape_for(target.greedy, target.device)
        self.root_law = _law_of_root(shape, target.greedy)

    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        paths, alone = self.paths(target, longest), [False] * target.batch
        if not any(paths):
            return self.inner.propose(target, keys, longest)
        if (least := self.control.alone_from) is not None:
            alone = [bool(path) and n >= least for path, n in zip(paths, self.copies.matched(least), strict=True)]
        rooms = target.rooms(1)
        if all(single for single, room in zip(alone, rooms, strict=True) if room):
            self.skipped += 1
            drawn = Draft(target.pending[:, None], chain(0, target.device), self.root_law)
            paths = [branches[:1] for branches in paths]
        else:
            drawn = self.inner.propose(target, keys, longest)
            paths = self.joining(paths, drawn, alone)
        return with_copied_paths(drawn, paths, alone, self.control.most)

    def paths(self, target: TextTarget, longest: int | None) -> list[Paths]:
        return [[path] if path else [] for path in self.copies.continuations(target, longest)]

    def joining(self, paths: list[Paths], drawn: Draft, alone: list[bool]) -> list[Paths]:
        """Return the paths that join the drafter's draft; here all. It must not depend on drawn values."""
        return paths


class Merged(DrafterWithMemory):
    """Drafts of prompt lookup and of a trained drafter in a single tree, verified in one pass ("Graft", "RASD").

    The copied continuation follows the drafter's tree as long as both agree, and branches off there. A round without a
    match uses the drafter's draft alone. Exact with the rules "exact", "traversal", "recursive" and "match".

    Args:
        drafter: A trained drafter whose drafts grow level by level: the EAGLE family, heads, blocks.
        retrieval: The source of continuations: prompt lookup, or suffix lookup, whose index requests may share; None for
            `PromptLookup(longest=16, doubling=True)`.
        alone_from: The length of a match from which a row's draft is the copied continuation alone. A batch skips the
            drafter's steps when every row has such a match. None never skips them.

    Raises:
        ValueError: `drafter` or `retrieval` is of another kind, or `alone_from` is below 1.
    """

    state = MergedState

    most: int | None = None  # the nodes at which a draft takes no more copies

    def __init__(self, drafter: ShapedDrafter, retrieval: Retrieval | None = None, *, alone_from: int | None = 8):
        super().__init__(drafter)
        retrieval = retrieval_of("lookup") if retrieval is None else retrieval
        if not isinstance(retrieval, PromptLookup | SuffixLookup):
            raise ValueError(f"retrieval: expected a PromptLookup or a SuffixLookup, got {type(retrieval).__name__}")
        self.retrieval = retrieval
        self.alone_from = None if alone_from is None else whole("alone_from", alone_from, 1)
        self.name = f"{retrieval.name}+{drafter.name}"


def _law_of_root(shape: Shape, greedy: bool) -> Law:
    """Return the `Law` of a draft without draft tokens, so that the rule of the other rounds verifies it."""
    if greedy or isinstance(shape, DynamicTree) or shape.drawn == "deterministic":
        return Law("deterministic")
    return Law(shape.drawn, reused=isinstance(shape, StaticTree) and shape.shared)


def retrieval_of(memory: Literal["lookup", "suffix"], index: SuffixIndex | None = None) -> Retrieval:
    """Prompt lookup copies up to 16 tokens, suffix lookup up to 32, since answers that are given again repeat for long."""
    if memory == "lookup":
        return PromptLookup(longest=16, doubling=True)
    return SuffixLookup(nodes=32, depth=32, doubling=True, index=index)


@method(
    "both",
    domain="vlm",
    kind="drafter",
    title="prompt lookup + a trained drafter",
    exact=True,
    needs=("weights",),
    order=23,
    drafts=("dynamic tree", "sampled tree with copies"),
    steps=("levels", 1, 2),
    about="prompt lookup and a trained drafter in one tree",
    paper="Graft",
)
def both(
    parts: MethodParts,
    chain: int = 0,
    nodes: int = 0,
    depth: int = 7,
    width: int = 4,
    shape: str | None = None,
    alone_from: int | None = 8,
    memory: Literal["lookup", "suffix"] = "lookup",
) -> Merged:
    """Return `Merged` over a trained drafter.

    Args:
        parts: The model and the trained drafter, "weights".
        chain: The tokens of the drafter's chain.
        nodes: The nodes of the drafter's dynamic tree.
        depth: The levels of that tree.
        width: The nodes expanded in a level of that tree.
        shape: The shape of its drafts in place of these, such as (best:nodes=16).
        alone_from: The length of a match from which a draft is the copied continuation alone.
        memory: The source of continuations: prompt lookup, or the likeliest by suffix lookup.
    """
    drafter = parts.part("weights")
    shape = shape_of(chain, nodes, depth, width, shape=value_of(shape, "vlm", "shape", parts))
    return Merged(drafter if shape is None else drafter.with_shape(shape), retrieval_of(memory), alone_from=alone_from)
