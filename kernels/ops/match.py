"""Thresholds and residual of target-match: a draft whose law is unknown, judged by the target's law alone.

A mass of NaN makes NaN of its own threshold and of its later siblings', which pass nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.backend import on_kernels
from mmspec.kernels.checks import BOOL, INDEX, WIDE, expect, expect_rows
from mmspec.kernels.law import TINY


def match_thresholds(mass: Tensor, token: Tensor, earlier: Tensor, live: Tensor | None) -> Tensor:
    """Probability of each node's token among what its earlier siblings left, float [B, N].

    p(x) / (1 - sum of p over distinct earlier siblings), and 0 for a token that an earlier sibling already had.
    mass: float [B, N], p at the node's own token.   token: int64 [B, N].
    earlier: bool [R, N, N], True where column j is an earlier sibling of row i.   live: bool [B, N] or None.
    """
    expect("mass", mass, WIDE, None, None)
    batch, nodes = mass.shape
    expect("token", token, INDEX, batch, nodes)
    expect_rows("earlier", earlier, batch, nodes, nodes)
    if live is not None:
        expect("live", live, BOOL, batch, nodes)
    if on_kernels(mass):
        from mmspec.kernels.gpu.match import launch_match

        return launch_match(mass, token, earlier, live)
    return match_thresholds_reference(mass, token, earlier, live)


def match_thresholds_reference(mass: Tensor, token: Tensor, earlier: Tensor, live: Tensor | None) -> Tensor:
    same = (token[:, :, None] == token[:, None, :]) & earlier
    same = same if live is None else same & live[:, None, :]
    fresh = torch.where(same.any(-1), 0.0, mass)
    fresh = fresh if live is None else torch.where(live, fresh, 0.0)
    tried = torch.where(earlier, fresh[:, None, :], 0.0).sum(-1)
    return (fresh / (1 - tried).clamp_min(TINY)).clamp_max(1)


def law_without(law: Tensor, token: Tensor, remove: Tensor) -> Tensor:
    """law [B, V] with the tokens int64 [B, N] marked in `remove` bool [B, N] set to 0; law itself where nothing is left."""
    rest = law.scatter_reduce(1, token, torch.where(remove, 0.0, torch.inf).to(law.dtype), "amin")
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, law)
