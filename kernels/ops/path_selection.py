"""Which nodes of a tree a round accepts, from thresholds and uniforms alone.

Integers but for one comparison, so both sides of the wrapper give the same nodes. A threshold that is NaN or 0 passes
nothing; a threshold of 1 passes everything. Uniforms may be float64 while thresholds are float32: they are compared wide.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.dispatch import BOOL, INDEX, WIDE, expect, expect_rows, on_kernels


def select_path(
    threshold: Tensor,
    uniform: Tensor,
    parent: Tensor,
    ancestor: Tensor,
    sibling_rank: Tensor,
    post_rank: Tensor,
    valid: Tensor | None,
    descend: bool,
) -> Tensor:
    """The accepted node of each row, int64 [B]; the root (node 0) whenever nothing else passes.

    threshold, uniform: float [B, N]; node i passes when uniform < threshold, so a threshold of 0 never passes.
    parent, sibling_rank, post_rank: int64 [R, N]; ancestor: bool [R, N, N] (own column included), R in {1, B}.
    valid: bool [B, N] or None.
    descend: True walks from the root to the first passing sibling again and again (token-wise and recursive rules);
        False takes the passing node that comes first in post-order (block and traversal verification).
    """
    expect("threshold", threshold, WIDE, None, None)
    batch, nodes = threshold.shape
    expect("uniform", uniform, WIDE, batch, nodes)
    expect_rows("ancestor", ancestor, batch, nodes, nodes)
    if valid is not None:
        expect("valid", valid, BOOL, batch, nodes)
    if on_kernels(threshold):
        from mmspec.kernels.gpu.path_selection import launch_select

        for name, ints in (("parent", parent), ("sibling_rank", sibling_rank), ("post_rank", post_rank)):
            expect(name, ints, INDEX, ancestor.shape[0], nodes)
        return launch_select(threshold, uniform, parent, ancestor, sibling_rank, post_rank, valid, descend)
    return select_path_reference(threshold, uniform, parent, ancestor, sibling_rank, post_rank, valid, descend)


def select_path_reference(
    threshold: Tensor, uniform: Tensor, parent: Tensor, ancestor: Tensor, sibling_rank: Tensor, post_rank: Tensor,
    valid: Tensor | None, descend: bool,
) -> Tensor:  # fmt: skip
    batch, nodes = threshold.shape
    passing = uniform < threshold
    if valid is not None:
        passing = passing & valid
    if descend:
        # an earlier sibling that passes hides the later ones
        ancestor, parent, rank = (t.expand(batch, *t.shape[1:]) for t in (ancestor, parent, sibling_rank))
        key = torch.where(passing, rank, nodes)
        first = key.new_full((batch, nodes), nodes).scatter_reduce_(1, parent[:, 1:], key[:, 1:], "amin")
        chosen = passing & (first.gather(1, parent) == rank)
        chosen[:, 0] = True
        candidate = (ancestor <= chosen[:, None, :]).all(-1)
    else:
        candidate = passing
        if valid is not None:
            candidate = candidate & (ancestor <= _below_root(valid)[:, None, :]).all(-1)
    candidate = candidate | (torch.arange(nodes, device=threshold.device) == 0)
    return torch.where(candidate, post_rank, nodes).argmin(-1)


def _below_root(valid: Tensor) -> Tensor:
    return valid | (torch.arange(valid.shape[1], device=valid.device) == 0)
