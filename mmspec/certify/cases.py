"""The cases of a certificate: pairs of distributions that differ in every relevant way, and all drafts from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmspec.certify.enumeration import EnumeratedDrafts, Tables, contrasted_tables, every_draft, target_law
from mmspec.certify.step import StepQuestion
from mmspec.core.round.draft import Drawn
from mmspec.core.round.tree import Tree, static_tree

SAMPLED_KINDS = ("random", "far", "p with zeros", "equal", "disjoint", "top-k")
DETERMINISTIC_KINDS = ("random", "far", "p with zeros")


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of drafts.

    Args:
        parents: The parent of each token, as in `StepQuestion`.
        drawn: How siblings were drawn from their distribution; "deterministic": picked, by any means.
        distinct: Of picked drafts, use only those whose siblings all differ, as tree builders make them.

    Raises:
        ValueError: The parents are not a tree, or `drawn` is unknown.
    """

    parents: tuple[int, ...]
    drawn: Drawn = "without_replacement"
    distinct: bool = True

    def __post_init__(self) -> None:
        if not self.parents or any(not 0 <= parent <= node for node, parent in enumerate(self.parents)):
            raise ValueError(
                f"parents: expected the number of an earlier token each, 0 for none, got {self.parents}; a chain "
                "of three is 0, 1, 2"
            )
        if self.drawn not in ("without_replacement", "with_replacement", "deterministic"):
            raise ValueError(
                f"drawn: expected without_replacement, with_replacement or deterministic, got {self.drawn!r}"
            )

    @property
    def tree(self) -> Tree:
        """The tree, with the committed root as node 0."""
        return static_tree((0, *self.parents))

    @property
    def chain(self) -> bool:
        """Whether each token is the child of its predecessor."""
        return self.parents == tuple(range(len(self.parents)))


def chain_of(length: int) -> Shape:
    return Shape(tuple(range(length)))


@dataclass(frozen=True)
class CertifyCase:
    """A pair of distributions with every draft from them."""

    kind: str  # of the pair
    shape: Shape
    p: Tables  # D + 2 context tables, for a value more than a round can emit
    q: Tables  # D context tables
    q_uncut: Tables  # D context tables, q before its top-k cut
    top_k: int  # values that the cut keeps
    drafts: EnumeratedDrafts

    @property
    def size(self) -> int:
        return self.p[0].shape[-1]

    @property
    def near(self) -> Tables:
        """The tables of p over the values that a single round can emit."""
        return self.p[:-1]

    @cached_property
    def target(self) -> Tensor:
        """The target's joint distribution over the values of a round, float64 [V^(D + 1)]."""
        return target_law(self.near)

    @cached_property
    def which(self) -> Tensor:
        """The distribution that a draft belongs to, int64 [R]; each deterministic draft has its own."""
        rows = len(self.drafts.value)
        return torch.arange(rows) if self.shape.drawn == "deterministic" else torch.zeros(rows, dtype=torch.long)

    @cached_property
    def question(self) -> StepQuestion:
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
    """Return the cases over `size` values, without those that have too few values for the siblings."""
    kinds = DETERMINISTIC_KINDS if shape.drawn == "deterministic" else SAMPLED_KINDS
    cases = [case_of(kind, shape, size, seed) for seed, kind in enumerate(kinds)]
    return [case for case in cases if bool(case.drafts.valid.all())]


def case_of(kind: str, shape: Shape, size: int, seed: int) -> CertifyCase:
    """Return the case of a kind in `SAMPLED_KINDS`, a pure function of the seed."""
    tree = shape.tree
    cut = kind == "top-k"
    p, uncut = contrasted_tables("random" if cut else kind, size, tree.max_depth + 1, seed)
    if kind == "p with zeros":
        p = [_top(p[0], size - 1), *p[1:]]  # at least one zero, already at the start of the round
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
    masked = torch.zeros_like(table).scatter(1, table.topk(count).indices, 1.0) * table
    return masked / masked.sum(-1, keepdim=True)
