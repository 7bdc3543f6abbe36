"""A copied path in the tree of a drafter: a single target pass verifies both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.nn.functional import pad

from mmspec.core.draft import Copies, Draft, Law
from mmspec.core.tree import dynamic_tree


def with_copied_paths(draft: Draft, paths: Sequence[Sequence[int]], alone: Sequence[bool]) -> Draft:
    """Return the union of a draft of tokens and a copied path per row; see "Graft" and "RASD" for such trees.

    The path follows the draft as long as the drawn tokens agree, then branches off after the drawn siblings. A row's
    nodes do not depend on other rows: its copied nodes follow its own last drawn node.

    Args:
        draft: Token ids int64 [B, N] over any tree. A draft with a distribution on record has a tree shared by all
            rows. A root alone may have such a record too, so that its copies are tested like those of other rounds.
        paths: Per row, the copied tokens after the root. They must not depend on the values drawn for this draft.
        alone: Per row, whether the drawn nodes are dropped; decided independently of their values.

    Raises:
        ValueError: A distribution is on record over a tree per row.
    """
    rows = _rows_of(draft)
    for row, path, single in zip(rows, paths, alone, strict=True):
        row.join(path, single)
    if not any(row.copied for row in rows) and not any(alone):
        return draft
    nodes = max(draft.tree.nodes, *(len(row.value) for row in rows))
    device = draft.value.device
    value = torch.tensor([row.value + [0] * (nodes - len(row.value)) for row in rows], device=device)
    parent = torch.tensor([row.parent + [0] * (nodes - len(row.parent)) for row in rows], device=device)
    valid = torch.tensor([row.valid + [False] * (nodes - len(row.valid)) for row in rows], device=device)
    tree = dynamic_tree(parent, max(row.depth for row in rows), nodes - 1)
    return Draft(value, tree, _law(draft, rows, nodes), valid)


@dataclass(slots=True)
class _Row:
    """The nodes of a row as lists; `copied` lists the copied nodes."""

    value: list[int]
    parent: list[int]
    valid: list[bool]
    copied: list[int] = field(default_factory=list)

    def join(self, path: Sequence[int], alone: bool) -> None:
        """Add the path after the last valid node, in place of invalid nodes and beyond."""
        if alone:
            self.valid = [True] + [False] * (len(self.valid) - 1)
        child: dict[tuple[int, int], int] = {}
        for node in range(1, len(self.value)):
            if self.valid[node]:
                child.setdefault((self.parent[node], self.value[node]), node)
        at, known = 0, 0
        while known < len(path) and (node := child.get((at, path[known]))) is not None:
            at, known = node, known + 1
        place = max(node for node, valid in enumerate(self.valid) if valid) + 1
        for token in path[known:]:
            self._put(place, token, at)
            at, place = place, place + 1
        # invalid nodes become children of the root, where they affect no other node
        self.parent = [parent if valid else 0 for parent, valid in zip(self.parent, self.valid, strict=True)]

    @property
    def depth(self) -> int:
        """The exact depth of the deepest node: a tree as deep as its number of nodes counts as a chain."""
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


def _law(draft: Draft, rows: Sequence[_Row], nodes: int) -> Law:
    law = draft.law
    if law.drawn in ("deterministic", "none"):
        return Law("deterministic")
    if len(draft.tree.parent) > 1:
        raise ValueError("draft: expected one tree for all rows of a draft with a recorded distribution, got a tree per row; "
                         "draft with a chain or a StaticTree")  # fmt: skip
    copied = torch.tensor([[node in row.copied for node in range(nodes)] for row in rows], device=draft.value.device)
    row = None if law.row is None else pad(law.row, (0, nodes - draft.tree.nodes), value=-1)
    return replace(law, row=row, copies=Copies(copied, draft.tree))
