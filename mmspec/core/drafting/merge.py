from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Copies, Draft, Law, SecondTree
from mmspec.core.round.tree import dynamic_tree, static_tree
from mmspec.kernels.reduced_law import spread_scores

Paths = Sequence[Sequence[int]]


def with_copied_paths(draft: Draft, paths: Sequence[Paths], alone: Sequence[bool], most: int | None = None) -> Draft:
    """Return the union of a draft of tokens and the copied paths of every row ("Graft", "RASD"). A path follows the
    tree as long as the tokens agree, then branches off after the siblings there. A draft with a distribution on record,
    even a root alone, has a tree shared by all rows. `paths` must not depend on the values drawn for this draft. Rows
    in `alone` drop their drawn nodes, decided independently of their values. A row takes no more copies from `most`
    nodes on, root included."""
    rows = _rows_of(draft)
    for row, copied, single in zip(rows, paths, alone, strict=True):
        row.join(copied, single, most)
    if not any(row.copied for row in rows) and not any(alone):
        return draft
    nodes = max(draft.tree.nodes, *(len(row.value) for row in rows))
    device = draft.value.device
    value = torch.tensor([row.value + [0] * (nodes - len(row.value)) for row in rows], device=device)
    parent = torch.tensor([row.parent + [0] * (nodes - len(row.parent)) for row in rows], device=device)
    valid = torch.tensor([row.valid + [False] * (nodes - len(row.valid)) for row in rows], device=device)
    tree = dynamic_tree(parent, max(row.depth for row in rows), nodes - 1)
    return Draft(value, tree, _law(draft, rows, nodes, max(map(len, paths)) > 1), valid)


def joined(first: Draft, second: Draft) -> Draft:
    """Return two drafts of the same roots as a single draft, tested in this order. Picked tokens of the second become
    copies. Tokens that both sources drew stay apart, since a drawn token must not be dropped."""
    if second.tree.nodes == 1 or first.tree.nodes == 1:
        return first if second.tree.nodes == 1 else second
    if second.law.drawn in ("deterministic", "none"):
        return with_copied_paths(first, paths_of(second), [False] * first.batch)
    if first.law.drawn != second.law.drawn:
        raise ValueError(f"drafts: expected siblings drawn alike, got {first.law.drawn} and {second.law.drawn}")
    tree, count = _shared_tree(first), first.tree.nodes
    below = [0 if not node else node + count - 1 for node in _shared_tree(second)]
    ids, one, two = _aligned(first.law, second.law)
    row = torch.where(second.law.row < 0, -1, second.law.row + one.shape[1])
    law = replace(
        first.law,
        row=torch.cat((row[:1], first.law.row[1:], row[1:])),
        scores=torch.cat((one, two), 1),
        ids=ids,
        reused=first.law.reused or second.law.reused,
        second=SecondTree(first.tree, second.tree, first.law.row[:1]),
    )
    valid = None
    if first.valid is not None or second.valid is not None:
        masks = [torch.ones_like(x.value, dtype=torch.bool) if x.valid is None else x.valid for x in (first, second)]
        valid = torch.cat((masks[0], masks[1][:, 1:]), 1)
    union = static_tree((*tree, *below[1:]), first.value.device)
    return Draft(torch.cat((first.value, second.value[:, 1:]), 1), union, law, valid)


def paths_of(draft: Draft) -> list[Paths]:
    paths = []
    for row in _rows_of(draft):
        inner = {row.parent[node] for node in range(1, len(row.value)) if row.valid[node]}
        leaves = [node for node in range(1, len(row.value)) if row.valid[node] and node not in inner]
        paths.append([row.tokens(leaf) for leaf in leaves])
    return paths


def _aligned(first: Law, second: Law) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the ids of both records, None for the whole vocabulary, and both scores over them."""
    one, two = first.ids, second.ids
    if one is two or (one is not None and two is not None and torch.equal(one, two)):
        return one, first.scores, second.scores
    if one is None or two is None:
        size = (first if one is None else second).scores.shape[-1]
        return None, *(x.scores if x.ids is None else spread_scores(x.scores, x.ids, size) for x in (first, second))
    ids = torch.cat((one, two)).unique()
    return ids, *(spread_scores(x.scores, torch.searchsorted(ids, x.ids), len(ids)) for x in (first, second))


def _shared_tree(draft: Draft) -> list[int]:
    if len(draft.tree.parent) > 1:
        raise ValueError(
            "draft: expected one tree for all rows of a draft with a recorded distribution, got a tree per row; "
            "draft with a chain or a StaticTree"
        )
    return draft.tree.parent[0].tolist()


@dataclass(slots=True)
class _Row:
    value: list[int]
    parent: list[int]
    valid: list[bool]
    copied: list[int] = field(default_factory=list)

    def join(self, paths: Paths, alone: bool, most: int | None) -> None:
        """Add the paths after the last valid node, in place of invalid nodes and beyond, up to `most` valid nodes."""
        if alone:
            self.valid = [True] + [False] * (len(self.valid) - 1)
        child: dict[tuple[int, int], int] = {}
        for node in range(1, len(self.value)):
            if self.valid[node]:
                child.setdefault((self.parent[node], self.value[node]), node)
        place = max(node for node, valid in enumerate(self.valid) if valid) + 1
        left = len(self.value) + sum(map(len, paths)) if most is None else most - sum(self.valid)
        for path in paths:
            at, known = 0, 0
            while known < len(path) and (node := child.get((at, path[known]))) is not None:
                at, known = node, known + 1
            for token in path[known : known + max(left - len(self.copied), 0)]:
                self._put(place, token, at)
                child[at, token] = place
                at, place = place, place + 1
        # invalid nodes become children of the root, where they affect no other node
        self.parent = [parent if valid else 0 for parent, valid in zip(self.parent, self.valid, strict=True)]

    def tokens(self, node: int) -> list[int]:
        path = []
        while node:
            path.append(self.value[node])
            node = self.parent[node]
        return path[::-1]

    @property
    def depth(self) -> int:
        """Exact: a tree as deep as its number of nodes counts as a chain."""
        depth = [0]
        for parent in self.parent[1:]:
            depth.append(depth[parent] + 1)
        return max(depth)

    def _put(self, place: int, token: int, parent: int) -> None:
        if place == len(self.value):
            self.value.append(token)
            self.parent.append(parent)
            self.valid.append(True)
        else:
            self.value[place], self.parent[place], self.valid[place] = token, parent, True
        self.copied.append(place)


def _rows_of(draft: Draft) -> list[_Row]:
    batch = draft.batch
    values, parents = draft.value.tolist(), draft.tree.parent.expand(batch, -1).tolist()
    valid = [[True] * draft.tree.nodes for _ in values] if draft.valid is None else draft.valid.tolist()
    return [_Row(*row) for row in zip(values, parents, valid, strict=True)]


def _law(draft: Draft, rows: Sequence[_Row], nodes: int, branching: bool) -> Law:
    law = draft.law
    if law.drawn in ("deterministic", "none"):
        return Law("deterministic")
    _shared_tree(draft)
    copied = torch.tensor([[node in row.copied for node in range(nodes)] for row in rows], device=draft.value.device)
    row = None if law.row is None else pad(law.row, (0, nodes - draft.tree.nodes), value=-1)
    return replace(law, row=row, copies=Copies(copied, draft.tree, branching))
