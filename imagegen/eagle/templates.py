"""Tree shapes for laws as flat as those of image values."""

from __future__ import annotations

from mmspec.core.drafting.templates import likeliest_tree

# how often the child drawn first, second, ... is kept: only the ratios shape the tree
RATES = (0.5, 0.2, 0.1, 0.07, 0.05)


def deep_tree(nodes: int = 57, depth: int = 5) -> tuple[int, ...]:
    """Parents of a fixed tree of `nodes` drafted nodes, widest at depth 3, with up to 5 children a node.

    The default has the size, the depth and the root's degree of the static tree in LANTERN's public code, not its very nodes.
    Raises ValueError when there is no such tree.
    """
    return likeliest_tree(nodes + 1, depth, RATES)
