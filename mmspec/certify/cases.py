"""What a step is certified on: laws that differ in every way that matters, and all drafts from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmspec.certify.enumeration import EnumeratedDrafts, Tables, contrasted_tables, every_draft, target_law
from mmspec.certify.step import StepQuestion
from mmspec.core.draft import Drawn
from mmspec.core.tree import Tree, static_tree

SAMPLED_KINDS = ("random", "far", "p with zeros", "equal", "disjoint", "top-k")
DETERMINISTIC_KINDS = ("random", "far", "p with zeros")


@dataclass(frozen=True, slots=True)
class Shape:
    """parents: as in `StepQuestion`.   drawn: how siblings were drawn from their law; "deterministic": picked, by any means.
    distinct: of picked drafts, those alone whose siblings all differ, as tree builders make them.
    Raises ValueError for other trees.
    """

    parents: tuple[int, ...]
    drawn: Drawn = "without_replacement"
    distinct: bool = True

    def __post_init__(self) -> None:
        if not self.parents or any(not 0 <= parent <= node for node, parent in enumerate(self.parents)):
            raise ValueError(f"parents: expected the number of an earlier token each, 0 for none, got {self.parents}; a chain "
                             "of three is 0, 1, 2")  # fmt: skip
        if self.drawn not in ("without_replacement", "with_replacement", "deterministic"):
            raise ValueError("drawn: expected without_replacement, with_replacement or deterministic, got "
                             f"{self.drawn!r}; use one of them")  # fmt: skip

    @property
    def tree(self) -> Tree:
        """With the committed root as node 0."""
        return static_tree((0, *self.parents))

    @property
    def chain(self) -> bool:
        """Each token hangs on the one before."""
        return self.parents == tuple(range(len(self.parents)))


def chain_of(length: int) -> Shape:
    """A chain of so many tokens, drawn from q."""
    return Shape(tuple(range(length)))


@dataclass(frozen=True)
class CertifyCase:
    """One pair of laws and every draft of it.

    p: D + 2 context tables, one more than a round can emit.   q, q_uncut: D of them.   drafts: all of the shape.
    """

    kind: str
    shape: Shape
    p: Tables
    q: Tables
    q_uncut: Tables
    top_k: int
    drafts: EnumeratedDrafts

    @property
    def size(self) -> int:
        return self.p[0].shape[-1]

    @property
    def near(self) -> Tables:
        """p over what one round can emit."""
        return self.p[:-1]

    @cached_property
    def target(self) -> Tensor:
        """The target's law of as many values, float64 [V^(D + 1)]."""
        return target_law(self.near)

    @cached_property
    def which(self) -> Tensor:
        """int64 [R], the law a draft belongs to: all to one, but for drafts that were picked, which stand each for itself."""
        rows = len(self.drafts.value)
        return torch.arange(rows) if self.shape.drawn == "deterministic" else torch.zeros(rows, dtype=torch.long)

    @cached_property
    def question(self) -> StepQuestion:
        """All drafts as rows."""
        tree, code = self.shape.tree, self.drafts.code
        depth, parent = tree.depth[0].tolist(), tree.parent[0].tolist()
        tokens = self.drafts.value[:, 1:]
        p = torch.stack([self.p[d][code[:, node]] for node, d in enumerate(depth)], 1)
        q, uncut = (
            torch.stack([laws[depth[parent[node]]][code[:, parent[node]]] for node in range(1, tree.nodes)], 1)
            for laws in (self.q, self.q_uncut)
        )
        if self.shape.drawn == "deterministic":
            q = uncut = torch.nn.functional.one_hot(tokens, self.size).double()
        return StepQuestion(tokens, q, p, uncut, self.top_k, self.shape.parents)


def cases_of(shape: Shape, size: int) -> list[CertifyCase]:
    """The laws a shape is certified on, over `size` values; without those that have too few values for its siblings."""
    kinds = DETERMINISTIC_KINDS if shape.drawn == "deterministic" else SAMPLED_KINDS
    found = [case_of(kind, shape, size, seed) for seed, kind in enumerate(kinds)]
    return [case for case in found if bool(case.drafts.valid.all())]


def case_of(kind: str, shape: Shape, size: int, seed: int) -> CertifyCase:
    """Laws of one of the `SAMPLED_KINDS` kinds, a pure function of the seed."""
    tree = shape.tree
    cut = kind == "top-k"
    p, uncut = contrasted_tables("random" if cut else kind, size, tree.max_depth + 1, seed)
    if kind == "p with zeros":
        p = [_top(p[0], size - 1), *p[1:]]  # one at least, and already where the round begins
    uncut, top_k = uncut[: tree.max_depth], size
    q = uncut
    if cut:
        top_k = min(max(size - 1, tree.max_rank + 1), size)
        q = [_top(table, top_k) for table in uncut]
    return CertifyCase(kind, shape, p, q, uncut, top_k, _distinct(every_draft(tree, q, shape.drawn), shape))


def _distinct(drafts: EnumeratedDrafts, shape: Shape) -> EnumeratedDrafts:
    if shape.drawn != "deterministic" or not shape.distinct:
        return drafts
    parents = torch.tensor((-1, *shape.parents))
    siblings = (parents[:, None] == parents).triu(1)
    keep = ~((drafts.value[:, :, None] == drafts.value[:, None]) & siblings).flatten(1).any(1)
    return EnumeratedDrafts(drafts.value[keep], drafts.code[keep], drafts.valid[keep], drafts.chance[keep])


def _top(table: Tensor, count: int) -> Tensor:
    kept = torch.zeros_like(table).scatter(1, table.topk(count).indices, 1.0) * table
    return kept / kept.sum(-1, keepdim=True)
