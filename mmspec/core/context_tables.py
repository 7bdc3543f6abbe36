"""Laws of short sequences over a tiny vocabulary, as tables.

Context tables are a sequence over depths d = 0, 1, ... of float64 [V^d, V], row c holding the law of the value after the
prefix whose base-V number is c.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Tables = Sequence[Tensor]


def random_tables(size: int, length: int, seed: int, *, peak: float = 1.0, zeros: float = 0.0) -> list[Tensor]:
    """Context tables of `length` values. peak: 0 is flat; zeros: share of the values that get probability 0."""
    generator = torch.Generator().manual_seed(seed)
    tables = []
    for depth in range(length):
        shape = (size**depth, size)
        scores = peak * torch.randn(shape, generator=generator, dtype=torch.float64)
        gone = torch.rand(shape, generator=generator) < zeros
        gone[torch.arange(len(gone)), torch.randint(size, (len(gone),), generator=generator)] = False
        tables.append(torch.softmax(scores.masked_fill(gone, -torch.inf), -1))
    return tables


LAWS = ("random", "p with zeros", "q with zeros", "both with zeros", "equal", "disjoint", "far")


def contrasted_tables(kind: str, size: int, depth: int, seed: int) -> tuple[Tables, Tables]:
    """p over depth + 1 values and q over `depth`, of one of the `LAWS`: how the two differ decides which mistakes show."""
    p, q = random_tables(size, depth + 1, seed), random_tables(size, depth, seed + 100)
    if kind == "p with zeros":
        p = random_tables(size, depth + 1, seed, zeros=0.5)
    elif kind == "q with zeros":
        q = random_tables(size, depth, seed + 100, zeros=0.5)
    elif kind == "both with zeros":
        p, q = random_tables(size, depth + 1, seed, zeros=0.5), random_tables(size, depth, seed + 100, zeros=0.5)
    elif kind == "equal":
        q = p[:depth]
    elif kind == "disjoint":
        split = size // 2
        p, q = [_cut(t, 0, split) for t in p], [_cut(t, split, size) for t in q]
    elif kind == "far":
        p, q = random_tables(size, depth + 1, seed, peak=3.0), random_tables(size, depth, seed + 100, peak=3.0)
    return p, q


def _cut(table: Tensor, start: int, stop: int) -> Tensor:
    kept = table.clone()
    kept[:, :start], kept[:, stop:] = 0, 0
    return kept / kept.sum(-1, keepdim=True)


def completed(ends: Sequence[Tensor], p: Tables) -> Tensor:
    """The law float64 [cases, V^len(ends)] of what was emitted (see `ends_of`) and then goes on by p."""
    joint = torch.zeros(len(ends[0]), 1, dtype=torch.float64)
    for end, table in zip(ends, p, strict=True):
        joint = end + (joint[..., None] * table).flatten(1)
    return joint


def target_law(p: Tables) -> Tensor:
    """The target's own joint law over len(p) values, float64 [V^len(p)]."""
    joint = torch.ones(1, dtype=torch.float64)
    for table in p:
        joint = (joint[:, None] * table).flatten()
    return joint


def total_variation(law: Tensor, target: Tensor) -> float:
    """The largest total variation of any case [cases, M] from the target [M]."""
    return float((law - target).abs().sum(-1).max() / 2)
