from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache
from typing import Literal, Self

import torch

from mmspec.core.drafting.shapes import (
    HIT_RATES,
    SAMPLED_DEPTH,
    SAMPLED_NODES,
    Chain,
    DynamicTree,
    Shape,
    StaticTree,
    likeliest_tree,
)
from mmspec.core.length.controls import ConfidenceStop, FixedLength, LengthControl, control_for
from mmspec.methods import MethodParts, method, value_of


def shape_for_request(shape: Shape, target: object) -> Shape:
    if not isinstance(shape, Chain) or (control := control_for(shape.length, target)) is shape.length:
        return shape
    return replace(shape, length=control)


DEFAULT_SHAPES = (DynamicTree(), StaticTree())
# On a CPU every node makes a pass dearer. Of zoo captions and SmolLM2's answers, trees of 24 nodes reached 1.6 and 0.8 times
# plain decoding, chains of 3 1.6 and 1.35, chains of 7 1.85 and below 1, and this chain 1.75 and 1.2.
ON_CPU = Chain(ConfidenceStop(0.4, longest=7))
_TREES = (8, 16, 24, 32, 48, 64)  # the drafted nodes of the smaller trees that a controller compares


def tree_sizes(shape: Shape) -> dict[int, Shape]:
    """Return the drafts that a controller compares by nodes; 0 is a chain, for trees whose levels do not share their
    draws."""
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
    """Return the nodes of a pass, the root included."""
    if isinstance(shape, Chain):
        return depth + 1
    cut = shape.cut(depth)
    return cut.nodes + 1 if isinstance(cut, DynamicTree) else len(cut.parents)


class ShapeMixin:
    """Mixin of drafters whose drafts are grown level by level (see `growth.py`)."""

    shapes: tuple[Shape, Shape] = DEFAULT_SHAPES  # of greedy and of sampled requests
    trained_depth: int | None = None  # the most levels that the drafter can draft

    def with_shape(self, shape: Shape, sampled: Shape | None = None) -> Self:
        other = copy.copy(self)
        other.shapes = (shape, sampled or shape)
        return other

    def shape_for(self, greedy: bool, device: torch.device | None = None) -> Shape:
        """Where none was set, greedy requests on a CPU draft a chain."""
        if greedy and self.shapes is DEFAULT_SHAPES and device is not None and device.type == "cpu":
            return ON_CPU
        return self.shapes[0 if greedy else 1]


def shape_of(
    chain: int = 0,
    nodes: int = 0,
    depth: int = 7,
    width: int = 4,
    length: LengthControl | str | None = None,
    shape: Shape | str | None = None,
) -> Shape | None:
    """Return the shape that settings request, None where they request none.

    Args:
        chain: The tokens of a chain.
        nodes: The nodes of a dynamic tree.
        depth: The levels of that tree.
        width: The nodes expanded in a level of that tree.
        length: The controller of a chain's length, such as confidence or (confidence:threshold=0.4,longest=8).
        shape: The shape in full, such as (best:nodes=16,depth=7,width=3), (static:nodes=16), (dynamic:stop=3:0.3+5:0.2)
            or (chain:length=confidence). `mmspec methods --kind shape` lists them.

    Raises:
        ValueError: More than one of a chain, a tree, a controller and a shape is requested, or a number is out of range.
    """
    named = {"chain": chain or None, "nodes": nodes or None, "length": length, "shape": shape}
    named_shapes = {name: value for name, value in named.items() if value is not None}
    if len(named_shapes) > 1:
        both = " and ".join(f"{name} {value}" for name, value in named_shapes.items())
        raise ValueError(
            f"{next(iter(named_shapes))}: expected one of chain, nodes, length and shape, got {both}; leave out the others"
        )
    if shape is not None:
        return value_of(shape, "vlm", "shape")
    if chain or length is not None:
        return Chain(FixedLength(chain) if length is None else length)
    return DynamicTree(nodes, depth, width) if nodes else None


@method(
    "static",
    domain=("vlm", "image"),
    kind="shape",
    title="static tree",
    exact=True,
    order=2,
    about="a tree of the same form in every round, drawn in sampled requests",
)
def static_shape(
    nodes: int = SAMPLED_NODES,
    depth: int = SAMPLED_DEPTH,
    drawn: Literal["without_replacement", "with_replacement"] = "without_replacement",
) -> StaticTree:
    """Return the static tree with the most expected accepted tokens, see `likeliest_tree`.

    Args:
        nodes: The drafted nodes (without the root).
        depth: The number of levels.
        drawn: How siblings are drawn.
    """
    return StaticTree(likeliest_tree(nodes + 1, depth, HIT_RATES), drawn)


@method("chain", domain=("vlm", "image"), kind="shape", title="chain", exact=True, about="a single path", order=3)
def chain_shape(
    parts: MethodParts | None = None,
    length: str = "fixed",
    drawn: Literal["without_replacement", "deterministic"] = "without_replacement",
) -> Chain:
    """Return a chain.

    Args:
        parts: The parts of the surrounding method, from which a controller with weights takes them.
        length: The controller of its length, such as (confidence:threshold=0.4), or a fixed number of tokens.
        drawn: How a sampled request gets its values: by draws, or deterministic top values.
    """
    control = FixedLength(int(length)) if length.isdecimal() else value_of(length, None, "controller", parts)
    return Chain(control, drawn)
