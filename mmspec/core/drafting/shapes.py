from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from mmspec.core.drafting.tree_stop import TreeStops
from mmspec.core.length.controls import FixedLength, LengthControl
from mmspec.io.validation import Size, check_fields
from mmspec.methods import method, value_of

# the rates at which a child of rank 0, 1, ... is accepted in sampled requests, for a deep tree
HIT_RATES = (0.7, 0.15, 0.06, 0.03)
SAMPLED_NODES, SAMPLED_DEPTH = 14, 7  # the drafted nodes and the levels of the default tree


def likeliest_tree(nodes: int, depth: int, hit_rates: Sequence[float]) -> tuple[int, ...]:
    """Return the parents of the tree of `nodes` (with the root) with the most expected accepted tokens, for falling
    chances in (0, 1) that a child of rank 0, 1, ... is right. A prefix of the list is the best smaller tree."""
    rates = tuple(hit_rates)
    if any(not 0 < r < 1 for r in rates) or any(a < b for a, b in zip(rates, rates[1:], strict=False)):
        raise ValueError(f"hit_rates: expected falling chances in (0, 1), got {rates}")
    if nodes < 1 or depth < 1:
        raise ValueError(f"nodes, depth: expected at least 1, got {nodes} and {depth}")
    parents, levels = [0], [0]
    heap = [(-rate, rank, 0) for rank, rate in enumerate(rates)]  # minus the chance, order of arrival, parent
    heapq.heapify(heap)
    order = len(rates)
    while heap and len(parents) < nodes:
        chance, _, parent = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        levels.append(levels[parent] + 1)
        if levels[node] < depth:
            for rate in rates:
                heapq.heappush(heap, (chance * rate, order, node))
                order += 1
    if len(parents) < nodes:
        raise ValueError(f"nodes: expected at most {len(parents)} at depth {depth}, width {len(rates)}, got {nodes}")
    return tuple(parents)


@method(
    "dynamic",
    domain=("vlm", "image"),
    kind="shape",
    title="dynamic tree",
    exact=True,
    order=0,
    about="a deterministic tree that grows where the drafter is confident",
    paper="EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
)
@dataclass(frozen=True, slots=True)
class DynamicTree:
    """A deterministic tree that grows where the drafter is confident.

    "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees": each level expands the `width` best nodes
    by cumulative probability into `width` children each, and the best `nodes` of all candidates form the draft.

    Args:
        nodes: The drafted nodes (without the root).
        depth: The number of levels.
        width: The nodes expanded in a level, and the children of each.
        stop: The depths at which a tree ends whose nodes are unlikely, such as 3:0.3+5:0.2. See `TreeStop`: every depth
            costs a host read, so captured rounds need none. Drafters with independent levels ignore them.
    """

    nodes: Size = 24
    depth: Size = 7
    width: Size = 4
    stop: TreeStops = field(default=TreeStops(), kw_only=True)

    @property
    def longest(self) -> int:
        """The levels of a draft."""
        return self.depth

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", TreeStops(self.stop))
        check_fields(self)
        if self.nodes > (pool := self.pool(self.depth, self.width)):
            raise ValueError(
                f"nodes: expected at most {pool} for depth {self.depth} and width {self.width}, got {self.nodes}"
            )

    @staticmethod
    def pool(depth: int, width: int) -> int:
        """Return the number of candidates from which a tree selects its nodes."""
        return width + (depth - 1) * width**2

    def cut(self, depth: int) -> DynamicTree:
        """Return the same tree with at most `depth` levels, and no more nodes than they hold."""
        return self if depth >= self.depth else _cut_dynamic(self, depth)


@lru_cache(maxsize=64)
def _cut_dynamic(shape: DynamicTree, depth: int) -> DynamicTree:
    return replace(shape, depth=depth, nodes=min(shape.nodes, DynamicTree.pool(depth, shape.width)))


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A fixed shape: `parents[i]` is the parent of node i, node 0 the root.

    Siblings are the top tokens in a greedy request, and are drawn from their parent's distribution in a sampled
    request. The shape never depends on drawn values.

    Args:
        parents: The parent of each node.
        drawn: "without_replacement", in draw order, for traversal verification; "with_replacement", independent draws
            that may coincide, for K-SEQ and recursive rejection with replacement.
        shared: Whether all parents of a level share a set of draws, for drafters with independent levels. Values below
            a rejected node then occur elsewhere too, so only rules that never look ahead support it.
    """

    parents: tuple[int, ...] = likeliest_tree(SAMPLED_NODES + 1, SAMPLED_DEPTH, HIT_RATES)
    drawn: Literal["without_replacement", "with_replacement"] = "without_replacement"
    shared: bool = False

    @property
    def longest(self) -> int:
        """The levels of a draft."""
        return _static_depth(self.parents)

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.parents) < 2 or any(not 0 <= p < i for i, p in enumerate(self.parents) if i):
            raise ValueError(f"parents: expected at least one node and 0 <= parents[i] < i, got {self.parents}")
        if self.shared and self.drawn != "without_replacement":
            raise ValueError(f"shared: expected siblings drawn without replacement, got {self.drawn!r}")

    def cut(self, depth: int) -> StaticTree:
        """Return the same tree with at most `depth` levels."""
        return _cut_static(self, depth)


def sampled_tree(depth: int | None = None) -> StaticTree:
    """The levels above the cut take the nodes of those below it, as far as they have room."""
    levels, width = min(depth or SAMPLED_DEPTH, SAMPLED_DEPTH), len(HIT_RATES)
    room = (width ** (levels + 1) - width) // (width - 1)
    return StaticTree(likeliest_tree(min(SAMPLED_NODES, room) + 1, levels, HIT_RATES))


@lru_cache(maxsize=256)
def _cut_static(shape: StaticTree, depth: int) -> StaticTree:
    nodes = [node for node, level in enumerate(_depths(shape.parents)) if level <= depth]
    return replace(shape, parents=tuple(nodes.index(shape.parents[node]) for node in nodes))


@lru_cache(maxsize=256)
def _static_depth(parents: tuple[int, ...]) -> int:
    return max(_depths(parents))


def _depths(parents: tuple[int, ...]) -> list[int]:
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    return depth


@dataclass(frozen=True, slots=True)
class Chain:
    """A single path, as long as `length` allows.

    Args:
        length: A length controller, or its text, such as "confidence:threshold=0.4".
        drawn: How a sampled request gets its values: "without_replacement" draws from the drafter's distribution,
            "deterministic" takes the top values. A greedy request takes top values in any case.
    """

    length: LengthControl | str = field(default_factory=FixedLength)
    drawn: Literal["without_replacement", "deterministic"] = "without_replacement"

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", value_of(self.length, None, "controller"))
        check_fields(self)
        if not hasattr(self.length, "begin"):
            raise ValueError(
                f"length: expected a controller of lengths such as confidence, got {self.length}; use another"
            )

    @property
    def longest(self) -> int:
        """The levels of a draft."""
        return self.length.longest


Shape = DynamicTree | StaticTree | Chain


def nodes_of(shape: Shape) -> int:
    """Return the most nodes of a draft, with the root and grown candidates."""
    if isinstance(shape, DynamicTree):
        return max(shape.nodes, shape.depth * shape.width) + 1
    return len(shape.parents) if isinstance(shape, StaticTree) else shape.longest + 1
