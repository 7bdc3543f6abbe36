"""Both distributions of a draft, and their probabilities of the drafted tokens, in two launches: the first reads all
scores of the target and the drafter, the second sums up every row and looks the tokens up."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.kernels.dispatch import FLOATS, INDEX, expect, expect_dense, expect_rows, on_kernels, wide
from mmspec.kernels.law import law_of, law_rows, mass_at
from mmspec.kernels.log_law import LogLaw


@dataclass(frozen=True, slots=True, eq=False)
class LawPair:
    p: Tensor | LogLaw  # [B, N, V], the target's distribution after each node
    q: Tensor | LogLaw  # [B, M, V], the drafter's distributions
    child_p: Tensor  # float [B, N], p after the parent
    child_q: Tensor  # float [B, N], q in the row from which the node was drawn
    token: Tensor  # int64 [B, N], clamped to the vocabulary
    row: Tensor  # int64 [N], the row of q for each node's children, clamped
    origin: Tensor  # int64 [R, N], the row of q from which each node was drawn


def law_pair(target: Tensor, drafter: Tensor, parent: Tensor, row: Tensor, value: Tensor) -> LawPair:
    """Return the pair of scores [B, N, V] and [B, M, V], for parents int64 [R, N] and drafted tokens int64 [B, N].
    `row` int64 [N] is the drafter's row for each node's children, -1 for none."""
    expect("target", target, FLOATS, None, None, None)
    expect("drafter", drafter, FLOATS, target.shape[0], None, target.shape[2])
    expect("row", row, INDEX, target.shape[1])
    expect("value", value, INDEX, *target.shape[:2])
    expect_rows("parent", parent, *target.shape[:2])
    expect_dense("target", target)
    expect_dense("drafter", drafter)
    if on_kernels(target) and wide(target.dtype) == wide(drafter.dtype):
        from mmspec.kernels.gpu.law_pair import launch_pair

        return LawPair(*launch_pair(target, drafter, parent, row, value))
    return _of(law_rows(target), law_rows(drafter), parent, row, value)


def law_pair_reference(target: Tensor, drafter: Tensor, parent: Tensor, row: Tensor, value: Tensor) -> LawPair:
    return _of(law_of(target), law_of(drafter), parent, row, value)


def _of(p: Tensor | LogLaw, q: Tensor | LogLaw, parent: Tensor, row: Tensor, value: Tensor) -> LawPair:
    token, row = value.clamp(0, p.shape[-1] - 1), row.clamp_min(0)
    origin = row[parent]
    return LawPair(p, q, mass_at(p, parent, token), mass_at(q, origin, token), token, row, origin)
