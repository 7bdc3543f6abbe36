"""The decoding "eagle": the trained drafter of a model, with the shape of its drafts as settings."""

from __future__ import annotations

from typing import Literal

from mmspec.core.drafting.heap import BestFirst
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree, likeliest_tree
from mmspec.core.length import FixedLength
from mmspec.imagegen.eagle.drafter import ImageEagle, deep_tree
from mmspec.methods import MethodParts, method, value_of

Tree = Literal["deep", "wide", "heap", "dynamic"]
Drawn = Literal["without_replacement", "with_replacement"]
# the rates at which a child of rank 0, 1, ... is accepted: flat rates spread the nodes over few levels
_FLAT_RATES = (0.4, 0.2, 0.12, 0.08, 0.06, 0.05, 0.04, 0.03)


def tree_shape(
    tree: Tree, nodes: int, depth: int, width: int = 4, stop: float = 0.0, drawn: Drawn = "without_replacement"
) -> Shape:
    """Return the shape of a tree.

    Args:
        tree: Its kind, see `eagle_decoding`.
        nodes: The drafted nodes.
        depth: The levels.
        width: The nodes that "heap" and "dynamic" expand in a level, and the children of each.
        stop: The probability that the best nodes of a level of "dynamic" need together for another level.
        drawn: How siblings of "deep" and "wide" are drawn.

    Raises:
        ValueError: The kind is unknown, it has no such setting, or there is no tree of these sizes.
    """
    if tree not in ("deep", "wide", "heap", "dynamic"):
        raise ValueError(f"tree: expected deep, wide, heap or dynamic, got {tree!r}; choose one of them")
    if stop and tree != "dynamic":
        raise ValueError(f"stop: expected tree=dynamic, got tree={tree}; leave stop out")
    if tree == "heap":
        return BestFirst(nodes, depth, width)
    if tree == "dynamic":
        return DynamicTree(nodes, depth, width, stop=tuple((d, stop) for d in range(2, depth) if stop))
    parents = deep_tree(nodes, depth) if tree == "deep" else likeliest_tree(nodes + 1, depth, _FLAT_RATES)
    return StaticTree(parents, drawn)


@method(
    "eagle", domain=("image", "video"), kind="decoding", title="EAGLE", exact=True, about="a trained drafter",
    paper="EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", needs=("eagle",), order=5,
    models=("codes",), judged=True,
)  # fmt: skip
def eagle_decoding(
    parts: MethodParts, nodes: int = 57, depth: int = 5, chain: int = 0, drawn: Drawn = "without_replacement",
    length: str | None = None, tree: Tree = "deep", width: int = 4, stop: float = 0.0,
) -> ImageEagle:  # fmt: skip
    """The trained drafter of a model.

    Args:
        parts: The model and its drafter, "eagle".
        nodes: The number of drafted nodes of the tree.
        depth: The levels of the tree.
        chain: The length of a chain that replaces the tree, 0 for the tree.
        drawn: How siblings of a fixed tree are drawn.
        length: The controller of a chain that replaces the tree, such as (confidence:threshold=0.4,longest=8).
        tree: "deep" and "wide" are fixed. "heap" grows where an acceptance is likeliest (DySpec). "dynamic" is EAGLE-2's
            tree of top values, which suits greedy requests.
        width: The nodes that "heap" and "dynamic" expand in a level, and the children of each.
        stop: The probability that the best nodes of a level of "dynamic" need together for another level (Dynamic Depth).
    """
    control = value_of(length, "image", "controller", parts) or (FixedLength(chain) if chain else None)
    shape = tree_shape(tree, nodes, depth, width, stop, drawn) if control is None else Chain(control)
    return parts.part("eagle").with_shape(shape)
