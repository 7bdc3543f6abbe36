"""Shapes of drafts (dynamic trees, static trees, chains), and the mixin of drafters that use them."""

from __future__ import annotations

import copy
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, Self

from mmspec.core.length import FixedLength, LengthControl, control_for
from mmspec.io.validation import check_fields
from mmspec.methods import value_of


def likeliest_tree(nodes: int, depth: int, hit_rates: Sequence[float]) -> tuple[int, ...]:
    """Return the parents of the tree with the most expected accepted tokens.

    Nodes are sorted by falling chance, so a prefix of the list is the best smaller tree.

    Args:
        nodes: The number of nodes, root included.
        depth: The largest depth of a node.
        hit_rates: Falling chances in (0, 1) that a node's child of rank 0, 1, ... is right.

    Raises:
        ValueError: No tree has these sizes.
    """
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


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where the growth of a dynamic tree may stop: where no row has a path of at least a chance. The host reads it.

    Args:
        least: The chance that a path needs for the tree to grow on.
        stages: Pairs of the expanded levels after which it may stop, and the nodes of the draft then.
    """

    least: float
    stages: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DynamicTree:
    """A deterministic tree that grows where the drafter is confident.

    "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees": each level expands the `width` best nodes
    by cumulative probability into `width` children each, and the best `nodes` of all candidates form the draft.

    Args:
        nodes: The drafted nodes (without the root).
        depth: The number of levels.
        width: The nodes expanded in a level, and the children of each.
        checkpoints: Where growth may stop early; None for nowhere.
        stop: Pairs of a depth and a probability: the tree ends at that depth where the nodes that a next level would
            expand have less probability together, in all rows ("Dynamic Depth Decoding"). Every depth costs a host read,
            so captured rounds need (). Drafters with independent levels, which draft all at once, ignore it.
    """

    nodes: int = 24
    depth: int = 7
    width: int = 4
    checkpoints: Checkpoints | None = field(default=None, kw_only=True)
    stop: tuple[tuple[float, float], ...] = field(default=(), kw_only=True)

    @property
    def longest(self) -> int:
        """The levels of a draft."""
        return self.depth

    def __post_init__(self) -> None:
        check_fields(self)
        if min(self.nodes, self.depth, self.width) < 1:
            raise ValueError(
                f"expected nodes, depth and width of at least 1, got {self.nodes}, {self.depth}, {self.width}"
            )
        if any(len(pair) != 2 or pair[0] < 2 or not 0 < pair[1] <= 1 for pair in self.stop):
            raise ValueError(f"stop: expected pairs of a depth from 2 up and a probability, got {self.stop}; change it")
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

    parents: tuple[int, ...] = (0, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 10, 10, 12)
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
        if self.drawn not in ("without_replacement", "with_replacement"):
            raise ValueError(f"drawn: expected 'without_replacement' or 'with_replacement', got {self.drawn!r}")
        if self.shared and self.drawn != "without_replacement":
            raise ValueError(f"shared: expected siblings drawn without replacement, got {self.drawn!r}")

    def cut(self, depth: int) -> StaticTree:
        """Return the same tree with at most `depth` levels."""
        return _cut_static(self, depth)


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
        if self.drawn not in ("without_replacement", "deterministic"):
            raise ValueError(f"drawn: expected 'without_replacement' or 'deterministic', got {self.drawn!r}")

    @property
    def longest(self) -> int:
        """The levels of a draft."""
        return self.length.longest


def shape_for_request(shape: Shape, target: object) -> Shape:
    """Return the shape of a request, whose controller of lengths may adapt to the request."""
    if not isinstance(shape, Chain) or (control := control_for(shape.length, target)) is shape.length:
        return shape
    return replace(shape, length=control)


def nodes_of(shape: Shape) -> int:
    """Return the most nodes of a draft in that shape, with the root and grown candidates."""
    if isinstance(shape, DynamicTree):
        return max(shape.nodes, shape.depth * shape.width) + 1
    return len(shape.parents) if isinstance(shape, StaticTree) else shape.longest + 1


Shape = DynamicTree | StaticTree | Chain
_TREES = (8, 16, 24, 32, 48, 64)  # the drafted nodes of the smaller trees that a controller compares


def tree_sizes(shape: Shape) -> dict[int, Shape]:
    """Return the smaller drafts that a controller compares, by drafted nodes, the tree itself last; 0 is a chain.

    Args:
        shape: The shape of the request. Chains have no sizes, and trees whose levels share their draws have no chain.
    """
    if isinstance(shape, Chain):
        return {}
    nodes = shape.nodes if isinstance(shape, DynamicTree) else len(shape.parents) - 1
    smaller = [size for size in _TREES if size < nodes]
    if isinstance(shape, DynamicTree):
        return {0: Chain(FixedLength(shape.depth))} | {size: replace(shape, nodes=size) for size in (*smaller, nodes)}
    chains = {} if shape.shared else {0: Chain(FixedLength(shape.longest))}
    return chains | {size: replace(shape, parents=shape.parents[: size + 1]) for size in (*smaller, nodes)}


@lru_cache(maxsize=1024)
def verified_nodes(shape: Shape, depth: int) -> int:
    """Return the nodes of a target pass over a draft of at most `depth` levels, the root included."""
    if isinstance(shape, Chain):
        return depth + 1
    cut = shape.cut(depth)
    return cut.nodes + 1 if isinstance(cut, DynamicTree) else len(cut.parents)


class ShapeMixin:
    """Mixin of drafters whose drafts are grown level by level (see `growth.py`).

    Attributes:
        shapes: The shapes of greedy and of sampled requests.
        trained_depth: The most levels that the drafter can draft; None for no limit.
    """

    shapes: tuple[Shape, Shape]
    trained_depth: int | None = None

    def with_shape(self, shape: Shape, sampled: Shape | None = None) -> Self:
        """Return a drafter with the same weights and another shape, and optionally a `sampled` shape for sampled requests."""
        other = copy.copy(self)
        other.shapes = (shape, sampled or shape)
        return other

    def shape_for(self, greedy: bool) -> Shape:
        """Return the shape of a request."""
        return self.shapes[0 if greedy else 1]


def shape_of(
    chain: int = 0, nodes: int = 0, depth: int = 7, width: int = 4, length: LengthControl | str | None = None
) -> Shape | None:
    """Return the shape that settings request, None where they request none.

    Args:
        chain: The tokens of a chain.
        nodes: The nodes of a dynamic tree.
        depth: The levels of that tree.
        width: The nodes expanded in a level of that tree.
        length: The controller of a chain's length, such as confidence or (confidence:threshold=0.4,longest=8).

    Raises:
        ValueError: More than one of a chain, a tree and a controller is requested, or a number is out of range.
    """
    if chain and nodes:
        raise ValueError(f"chain: expected either chain or nodes, got both ({chain} and {nodes}); leave one out")
    if length is not None and (chain or nodes):
        raise ValueError(
            f"length: expected either length, chain or nodes, got {length} beside {chain or nodes}; leave one out"
        )
    if chain or length is not None:
        return Chain(FixedLength(chain) if length is None else length)
    return DynamicTree(nodes, depth, width) if nodes else None
