"""The shape of a draft: a rooted tree over N nodes, root first, parents before children."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TreeLevel:
    """The nodes of one depth and one sibling rank of a static tree, with their parents; both int64 [n]."""

    depth: int
    rank: int
    node: Tensor
    parent: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The topology of a draft. Node 0 is the root: the last committed value, always accepted.

    Every tensor has a leading axis R, 1 for a static shape shared by all rows or B for a shape per row.

    Attributes:
        parent: int64 [R, N]; the root is its own parent.
        depth: int64 [R, N], 0 for the root.
        sibling_rank: int64 [R, N], the index of a node among its siblings, 0 for the root.
        post_rank: int64 [R, N], the index of a node in post-order.
        ancestor: bool [R, N, N], True where column j lies on the path root..i (i included).
        path: int64 [R, N, D + 1], the path root..i, padded with i itself past its depth.
        max_depth: A Python int, so that no loop bound needs a device sync.
        max_rank: The largest sibling rank, a Python int.
        levels: For static trees, an entry for each existing (depth, rank), in this order; else None.
        roots: int64 [C], the nodes that are their own parents, if there are several (see `chains`); else None.
    """

    parent: Tensor
    depth: Tensor
    sibling_rank: Tensor
    post_rank: Tensor
    ancestor: Tensor
    path: Tensor
    max_depth: int
    max_rank: int
    levels: tuple[TreeLevel, ...] | None = None
    roots: Tensor | None = None

    @property
    def nodes(self) -> int:
        """The number of nodes N, the root included."""
        return self.parent.shape[1]

    @property
    def straight(self) -> bool:
        """Whether every node is the child of its predecessor, in all rows."""
        return len(self.parent) == 1 and self.max_depth == self.nodes - 1

    @property
    def static(self) -> bool:
        """Whether all rows share a shape that is known before anything is drawn."""
        return self.levels is not None


def chain(length: int, device: torch.device | str = "cpu") -> Tree:
    """Return a chain of `length` drafted values after the root; `length` 0 is the root alone (plain decoding)."""
    return static_tree(tuple(max(i - 1, 0) for i in range(length + 1)), device)


def uncached_chain(count: int, device: torch.device | str = "cpu") -> Tree:
    """Do as `chain(count - 1)` without the cache, for prompts of any length."""
    node = torch.arange(count, device=device)
    path = torch.minimum(node, node[:, None])
    row = [x[None] for x in ((node - 1).clamp(min=0), node, node * 0, count - 1 - node, node[:, None] >= node, path)]
    return Tree(*row, count - 1, 0)


def chains(lengths: Sequence[int], device: torch.device | str = "cpu") -> Tree:
    """Return chains side by side, for rules with mask verdicts: `lengths[c]` drafted values after the root of chain c.

    Nodes are ordered chain by chain; every chain's first node is its own parent."""
    return _chains(tuple(lengths), str(device))


@lru_cache(maxsize=512)
def _chains(lengths: tuple[int, ...], device: str) -> Tree:
    if not lengths or min(lengths) < 0:
        raise ValueError(f"lengths: expected at least one length, all 0 or more, got {lengths}")
    size = torch.tensor(lengths) + 1
    first = size.cumsum(0) - size
    root = first.repeat_interleave(size)
    node = torch.arange(len(root))
    depth = node - root
    ancestor = (root[:, None] == root) & (node[:, None] >= node)
    path = root[:, None] + torch.minimum(torch.arange(max(lengths) + 1), depth[:, None])
    post = 2 * root + size.repeat_interleave(size) - 1 - node
    row = [x[None].to(device) for x in ((node - 1).maximum(root), depth, depth * 0, post, ancestor, path)]
    return Tree(*row, max(lengths), 0, roots=first.to(device))


def static_tree(parents: Sequence[int], device: torch.device | str = "cpu") -> Tree:
    """Return the tree with `parents[i]` the parent of node i; `parents[0]` is 0 and every parent precedes its children."""
    return _static_tree(tuple(int(p) for p in parents), str(device))


@lru_cache(maxsize=512)
def _static_tree(parents: tuple[int, ...], device: str) -> Tree:
    if not parents or parents[0] != 0 or any(not 0 <= p < i for i, p in enumerate(parents) if i):
        raise ValueError(f"parents: expected parents[0] == 0 and 0 <= parents[i] < i, got {parents}")
    count = len(parents)
    depth, rank, children = [0] * count, [0] * count, [[] for _ in range(count)]
    for node in range(1, count):
        depth[node] = depth[parents[node]] + 1
        rank[node] = len(children[parents[node]])
        children[parents[node]].append(node)
    post = _post_order(children)
    ancestor, path = _ancestry(parents, depth)
    groups: dict[tuple[int, int], list[int]] = {}
    for node in range(1, count):
        groups.setdefault((depth[node], rank[node]), []).append(node)
    to = dict(device=device)
    levels = tuple(
        TreeLevel(d, r, torch.tensor(nodes, **to), torch.tensor([parents[n] for n in nodes], **to))
        for (d, r), nodes in sorted(groups.items())
    )
    row = [torch.tensor([x], **to) for x in (parents, depth, rank, post)]
    return Tree(*row, ancestor[None].to(device), path[None].to(device), max(depth), max(rank), levels)


def _post_order(children: list[list[int]]) -> list[int]:
    post, stack, seen = [0] * len(children), [(0, 0)], 0
    while stack:
        node, child = stack.pop()
        if child < len(children[node]):
            stack += [(node, child + 1), (children[node][child], 0)]
        else:
            post[node], seen = seen, seen + 1
    return post


def _ancestry(parents: Sequence[int], depth: Sequence[int]) -> tuple[Tensor, Tensor]:
    count = len(parents)
    ancestor = torch.zeros(count, count, dtype=torch.bool)
    path = torch.zeros(count, max(depth) + 1, dtype=torch.long)
    for node in range(count):
        if node:
            ancestor[node] = ancestor[parents[node]]
            path[node] = path[parents[node]]
        ancestor[node, node] = True
        path[node, depth[node] :] = node
    return ancestor, path


def dynamic_tree(parent: Tensor, max_depth: int, max_rank: int) -> Tree:
    """Return the tree of given parents, built on their device without a sync. Children are in index order.

    Args:
        parent: int64 [B, N], topologically sorted; the root 0 is its own parent.
        max_depth: An upper bound of the depth, known from the drafter's configuration.
        max_rank: An upper bound of the sibling rank.
    """
    rows, count = parent.shape
    climb = [torch.arange(count, device=parent.device).expand(rows, -1)]
    for _ in range(max_depth):
        climb.append(parent.gather(1, climb[-1]))
    climb = torch.stack(climb, -1)  # [B, N, D + 1]: the node, its parent, ..., then the root repeated
    depth = (climb != 0).sum(-1)
    step = torch.arange(max_depth + 1, device=parent.device)
    path = climb.gather(-1, (depth[..., None] - step).clamp_(min=0))
    ancestor = torch.zeros(rows, count, count, dtype=torch.bool, device=parent.device).scatter_(2, path, True)
    same = parent[:, :, None] == parent[:, None, :]
    sibling_rank = (same & _earlier(count, str(parent.device))).sum(-1)
    post_rank = _dynamic_post(path, step <= depth[..., None])
    return Tree(parent, depth, sibling_rank, post_rank, ancestor, path, max_depth, max_rank)


@lru_cache(maxsize=64)
def _earlier(count: int, device: str) -> Tensor:
    earlier = torch.ones(count, count, dtype=torch.bool, device=device).tril(-1)
    earlier[:, 0] = False
    return earlier


def _dynamic_post(path: Tensor, inside: Tensor) -> Tensor:
    # a path compares as larger than its extensions, so the lexicographic order of paths is post-order
    count = path.shape[1]
    digits = torch.where(inside, path, count)
    order = torch.arange(count, device=path.device).expand(path.shape[:2])
    per_key = max(int(62 / math.log2(count + 1)), 1)  # digits that fit one int64
    for end in range(path.shape[2], 0, -per_key):
        key = digits[..., max(end - per_key, 0) : end]
        weight = (count + 1) ** torch.arange(key.shape[-1] - 1, -1, -1, device=path.device)
        key = (key * weight).sum(-1)
        order = order.gather(1, key.gather(1, order).argsort(stable=True, dim=-1))
    return order.argsort(-1)
