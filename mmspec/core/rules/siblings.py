"""Parents and their children by sibling rank, in the layout that sequential rejection works through."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.tree import Tree


@dataclass(frozen=True, slots=True, eq=False)
class SiblingTable:
    """M parents, those with most children first; the first n of them have a child of rank r.

    node: int64 [M].   child: per rank int64 [n], or [B, M] for trees per row with N standing for "no such child".
    """

    node: Tensor
    child: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TreeLayout:
    """A static tree as sequential rejection works through it, depth by depth, so that slices serve where nodes would have
    to be gathered one fan at a time.

    parent: int64 [M], the parents of all fans in a row.   child: int64 [N - 1], their children, by fan and rank.
    place: int64 [N], where a node stands in (root, *child).   steps: the fans, root first; the last may be a chain.
    """

    parent: Tensor
    child: Tensor
    place: Tensor
    steps: tuple[LayoutStep, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LayoutStep:
    """One fan, or the chain below the last one. first, count: which of the parents are its own.   start: int64 [count],
    where these stand among the children of the step before; None for the root.
    ranks: per rank the first of its children and how many.   chain: every parent is the only child of the one before.
    """

    first: int
    count: int
    start: Tensor | None
    ranks: tuple[tuple[int, int], ...]
    chain: bool = False


@lru_cache(maxsize=512)
def tree_layout(tree: Tree) -> TreeLayout:
    """The layout of a static tree; the single nodes that it ends in are one step."""
    device, fans = tree.parent.device, _static_tables(tree, True)
    parent, child, steps, before = [], [], [], [0]
    for number, fan in enumerate(fans):
        nodes, ranks = fan.node.tolist(), [one.tolist() for one in fan.child]
        tail = all(len(f.node) == 1 and len(f.child) == 1 for f in fans[number:]) and len(fans) - number > 1
        start = torch.tensor([before.index(node) for node in nodes], device=device) if number else None
        if tail:
            rest = [f.node.tolist()[0] for f in fans[number:]]
            below = [f.child[0].tolist()[0] for f in fans[number:]]
            steps.append(LayoutStep(len(parent), len(rest), start, ((len(child), len(rest)),), chain=True))
            parent, child = parent + rest, child + below
            break
        begun, spans = len(child), []
        for one in ranks:
            spans.append((len(child), len(one)))
            child += one
        steps.append(LayoutStep(len(parent), len(nodes), start, tuple(spans)))
        parent, before = parent + nodes, child[begun:]
    order = [0, *child]
    place = [order.index(node) for node in range(tree.nodes)]
    made = (torch.tensor(x, dtype=torch.long, device=device) for x in (parent, child, place))
    return TreeLayout(*made, tuple(steps))


def sibling_table(tree: Tree) -> SiblingTable:
    """All parents of the tree in one fan."""
    return _static_tables(tree, False)[0] if tree.static else _row_table(tree, None)


def sibling_tables_by_depth(tree: Tree) -> tuple[SiblingTable, ...]:
    """One fan per depth of the parents, root first."""
    return _static_tables(tree, True) if tree.static else tuple(_row_table(tree, d) for d in range(tree.max_depth))


@lru_cache(maxsize=512)
def _static_tables(tree: Tree, by_depth: bool) -> tuple[SiblingTable, ...]:
    device = tree.parent.device
    groups: dict[int, dict[int, list[int]]] = {} if by_depth else {0: {}}
    for level in tree.levels:
        for parent, node in zip(level.parent.tolist(), level.node.tolist(), strict=True):
            groups.setdefault(level.depth if by_depth else 0, {}).setdefault(parent, []).append(node)
    fans = []
    for _, children in sorted(groups.items()):
        parents = sorted(children, key=lambda parent: -len(children[parent]))
        ranks = max((len(c) for c in children.values()), default=0)
        child = [[children[p][r] for p in parents if len(children[p]) > r] for r in range(ranks)]
        fans.append(SiblingTable(torch.tensor(parents, dtype=torch.long, device=device),
                        tuple(torch.tensor(c, device=device) for c in child)))  # fmt: skip
    return tuple(fans)


def _row_table(tree: Tree, depth: int | None) -> SiblingTable:
    # every node counts as a parent, because rows differ in which ones are
    rows, nodes = tree.parent.shape
    index = torch.arange(nodes, device=tree.parent.device)
    ranks = tree.max_rank + 1
    slot = (tree.parent * ranks + tree.sibling_rank)[:, 1:]
    table = tree.parent.new_full((rows, nodes * ranks), nodes).scatter_(1, slot, index[1:].expand(rows, -1))
    table = table.view(rows, nodes, ranks)
    if depth is not None:
        table = torch.where((tree.depth == depth)[..., None], table, nodes)
    return SiblingTable(index, table.unbind(-1))


def gather_children(tensor: Tensor, child: Tensor) -> Tensor:
    """tensor [..., B, N] at children int64 [n] or [B, n] -> [..., B, n]."""
    if child.dim() == 1:
        return tensor.index_select(-1, child)
    return tensor.gather(-1, child.expand(*tensor.shape[:-1], -1))


def scatter_children(tensor: Tensor, child: Tensor, value: Tensor) -> None:
    """The inverse of `gather_children`, in place, for a tensor [B, N]."""
    if child.dim() == 1:
        tensor.index_copy_(1, child, value)
    else:
        tensor.scatter_(1, child.expand(len(tensor), -1), value)
