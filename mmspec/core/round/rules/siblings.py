from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.round.tree import Tree
from mmspec.kernels.log_law import RejectionOrder


@dataclass(frozen=True, slots=True, eq=False)
class SiblingTable:
    """M parents int64 [M], sorted by falling number of children; the first n of them have a child of rank r."""

    node: Tensor
    child: tuple[Tensor, ...]  # per rank int64 [n], or [B, M] for trees per row, where N stands for a missing child


@dataclass(frozen=True, slots=True, eq=False)
class TreeLayout:
    """A static tree in the depth-by-depth order of sequential rejection, so that slices replace a gather per depth."""

    parent: Tensor  # int64 [M], the parents of all steps in order
    child: Tensor  # int64 [N - 1], their children, by step and rank
    place: Tensor  # int64 [N], the index of each node in (root, *child)
    steps: tuple[LayoutStep, ...]  # root first; the last may be a chain


@dataclass(frozen=True, slots=True, eq=False)
class LayoutStep:
    """The parents of a depth with their children, or the final chain of a tree."""

    first: int  # of its parents in `TreeLayout.parent`
    count: int
    start: Tensor | None  # int64 [count], its parents among the previous step's children; None for the root
    ranks: tuple[tuple[int, int], ...]  # per rank, the first of its children and their number
    chain: bool = False  # every parent is the only child of its predecessor


@lru_cache(maxsize=512)
def tree_layout(tree: Tree) -> TreeLayout:
    device, fans = tree.parent.device, _static_tables(tree, True)
    parent, child, steps, before = [], [], [], [0]
    for number, fan in enumerate(fans):
        nodes, ranks = fan.node.tolist(), [rank.tolist() for rank in fan.child]
        tail = all(len(f.node) == 1 and len(f.child) == 1 for f in fans[number:]) and len(fans) - number > 1
        start = torch.tensor([before.index(node) for node in nodes], device=device) if number else None
        if tail:
            rest = [f.node.tolist()[0] for f in fans[number:]]
            below = [f.child[0].tolist()[0] for f in fans[number:]]
            steps.append(LayoutStep(len(parent), len(rest), start, ((len(child), len(rest)),), chain=True))
            parent, child = parent + rest, child + below
            break
        begun, spans = len(child), []
        for siblings in ranks:
            spans.append((len(child), len(siblings)))
            child += siblings
        steps.append(LayoutStep(len(parent), len(nodes), start, tuple(spans)))
        parent, before = parent + nodes, child[begun:]
    order = [0, *child]
    place = [order.index(node) for node in range(tree.nodes)]
    tensors = (torch.tensor(x, dtype=torch.long, device=device) for x in (parent, child, place))
    return TreeLayout(*tensors, tuple(steps))


def sibling_table(tree: Tree) -> SiblingTable:
    return _static_tables(tree, False)[0] if tree.static else _row_table(tree, None)


def sibling_tables_by_depth(tree: Tree) -> tuple[SiblingTable, ...]:
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
        fans.append(
            SiblingTable(
                torch.tensor(parents, dtype=torch.long, device=device),
                tuple(torch.tensor(c, device=device) for c in child),
            )
        )
    return tuple(fans)


def _row_table(tree: Tree, depth: int | None) -> SiblingTable:
    rows, nodes = tree.parent.shape  # every node counts as a parent, since parents differ between rows
    index = torch.arange(nodes, device=tree.parent.device)
    ranks = tree.max_rank + 1
    slot = (tree.parent * ranks + tree.sibling_rank)[:, 1:]
    table = tree.parent.new_full((rows, nodes * ranks), nodes).scatter_(1, slot, index[1:].expand(rows, -1))
    table = table.view(rows, nodes, ranks)
    if depth is not None:
        table = torch.where((tree.depth == depth)[..., None], table, nodes)
    return SiblingTable(index, table.unbind(-1))


def rejection_order(tree: Tree, post: bool) -> RejectionOrder:
    """With `post` from the root down, else with all parents at weight 1 at once."""
    return _static_order(tree, post) if tree.static else _row_order(tree, post)


@lru_cache(maxsize=512)
def _static_order(tree: Tree, post: bool) -> RejectionOrder:
    nodes, device = tree.nodes, tree.parent.device
    children: list[list[int]] = [[] for _ in range(nodes)]
    for node, parent in enumerate(tree.parent[0].tolist()[1:], 1):
        children[parent].append(node)
    first, most, rank = [0] * nodes, max(map(len, children)), tree.sibling_rank[0].tolist()
    for siblings in children:
        siblings.sort(key=rank.__getitem__)
    # a child is ready after the rejection of its earlier siblings; parents come before their children in the draft
    for parent, siblings in enumerate(children if post else ()):
        for index, node in enumerate(siblings):
            first[node] = first[parent] + index + 1
    parents = [node for node in range(nodes) if children[node]]
    padded = [[nodes, *siblings, *[nodes] * (most + 1 - len(siblings))] for siblings in children]
    ends = {node: first[node] + len(children[node]) for node in parents}
    last = max(ends.values())
    if not post:  # a parent's last step writes its state over that of a leaf, which its own parent writes meanwhile
        ends = dict.fromkeys(parents, last)
    steps = []
    for step in range(last + 1):
        tested = [(m, step - first[m]) for m in parents if 0 <= step - first[m] < len(children[m])]
        tested += [(m, len(children[m])) for m in parents if ends[m] == step]
        rows = [(m, rank, len(children[m]), *padded[m][rank : rank + 2]) for m, rank in tested]
        steps.append(torch.tensor(rows, device=device).T.contiguous())
    child = [row[1 : most + 1] for row in padded]
    return RejectionOrder(*(torch.tensor(x, device=device) for x in ([child], [first], parents)), tuple(steps))


def _row_order(tree: Tree, post: bool) -> RejectionOrder:
    table, ranks = _row_table(tree, None), tree.max_rank + 1
    child = torch.stack(table.child, -1)
    first = tree.depth * ranks if post else torch.zeros_like(tree.depth)
    steps = (tree.max_depth if post else 1) * ranks + 1  # nodes of the largest depth have no children
    return RejectionOrder(child, first, table.node, (table.node,) * steps)


def gather_children(tensor: Tensor, child: Tensor) -> Tensor:
    """Take [..., B, N] at the children int64 [n] or [B, n], [..., B, n]."""
    if child.dim() == 1:
        return tensor.index_select(-1, child)
    return tensor.gather(-1, child.expand(*tensor.shape[:-1], -1))


def scatter_children(tensor: Tensor, child: Tensor, value: Tensor) -> None:
    """Invert `gather_children`."""
    if child.dim() == 1:
        tensor.index_copy_(1, child, value)
    else:
        tensor.scatter_(1, child.expand(len(tensor), -1), value)
