"""Thresholds of block verification along a chain, all positions at once."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.law import residual_mass


def block_thresholds(ratio: Tensor, p: Tensor, q: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
    """Thresholds h and prefix weights P of "Block Verification Accelerates Speculative Decoding", both float [B, K + 1].

    P_0 = 1, P_i = min(1, P_{i-1} ratio_i); Z_i = sum_x [P_i p_i(x) - q_i(x)]+; h_i = Z_i / (Z_i + 1 - P_i) where value i + 1
    was drawn, else h_i = P_i.

    ratio: float [B, K], p(x)/q(x) of each drafted value.   p: [B, K + 1, V], law after node i; q: [B, K, V], law value
    i + 1 was drawn from.   drawn: bool [B, K] a prefix of ones, or None for all.
    """
    # log P is a walk held below 0: its closed form is the walk minus its running maximum
    walk = torch.nn.functional.pad(ratio.log(), (1, 0)).cumsum(-1)
    weight = (walk - walk.cummax(-1).values).exp()
    before = weight[:, :-1]
    mass = residual_mass(p[:, :-1], q, before, torch.ones_like(before))
    room = mass + (1 - before)
    height = torch.where(room == 0, 1.0, mass / room)
    height = height if drawn is None else torch.where(drawn, height, before)
    return torch.cat((height, weight[:, -1:]), 1), weight
