"""Laws, trees and stopping decisions that every exact rule is enumerated on."""

from __future__ import annotations

from torch import Tensor

from mmspec.certify.enumeration import Grow
from mmspec.core.round.rules import (
    BestExact,
    BlockVerification,
    KSeq,
    RecursiveRejection,
    Rule,
    TargetMatch,
    TokenWise,
    Traversal,
)
from mmspec.core.round.tree import Tree, chain, static_tree

WITHOUT, WITH = "without_replacement", "with_replacement"

CHAINS = {f"chain{depth}": chain(depth) for depth in range(5)}
TREES = {
    "two levels of two": static_tree([0, 0, 0, 1, 1, 2, 2]),
    "three children": static_tree([0, 0, 0, 0, 1, 2]),
    "irregular": static_tree([0, 0, 0, 1, 1, 2, 4]),
    "not in breadth order": static_tree([0, 0, 1, 0, 1, 3, 2]),
    "deep": static_tree([0, 0, 0, 1, 3, 4, 4]),
}
RULES: list[tuple[Rule, str, bool]] = [
    (TokenWise(), WITHOUT, True),
    (BlockVerification(), WITH, True),
    (Traversal(), WITHOUT, False),
    (RecursiveRejection(), WITHOUT, False),
    (RecursiveRejection(replacement=True), WITH, False),
    (KSeq(), WITH, False),
    (TargetMatch(), WITHOUT, False),
    (TargetMatch(), WITH, False),
    (BestExact(), WITHOUT, False),
    (BestExact(), WITH, False),
]


def stop_after_zero(tree: Tree) -> Grow:
    """Nothing is drawn below a node whose value is 0: a confidence stop."""
    parent = tree.parent[0].tolist()
    return lambda value, valid, node: (value[:, parent[node]] != 0) | (parent[node] == 0)


def more_below_one(tree: Tree) -> Grow:
    """One child below most values, all children below value 1."""
    parent, rank = tree.parent[0].tolist(), tree.sibling_rank[0].tolist()
    return lambda value, valid, node: (value[:, parent[node]] == 1) | (rank[node] == 0)


def one_parent_a_level(tree: Tree) -> Grow:
    """Only the node with the largest value of each level gets children: a beam, decided across branches."""
    parent, depth = tree.parent[0].tolist(), tree.depth[0].tolist()

    def grow(value: Tensor, valid: Tensor, node: int) -> Tensor:
        level = [i for i, d in enumerate(depth) if d == depth[node] - 1]
        best = value[:, level].masked_fill(~valid[:, level], -1).argmax(-1)
        return best == level.index(parent[node])

    return grow


def every_second_child(tree: Tree) -> Grow:
    """First siblings are never drawn where a later one exists and the parent's value is 2."""
    parent, rank = tree.parent[0].tolist(), tree.sibling_rank[0].tolist()
    return lambda value, valid, node: (value[:, parent[node]] != 2) | (rank[node] > 0)


GROWS = (stop_after_zero, more_below_one, one_parent_a_level, every_second_child)
