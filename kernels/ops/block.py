"""Thresholds of block verification along a chain, all positions at once.

A ratio of NaN makes NaN of the weights behind it, which pass nothing. On kernels the walk, the masses and the heights are a
launch each, whatever the length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.backend import on_kernels
from mmspec.kernels.checks import BOOL, WIDE, expect
from mmspec.kernels.law import LogLaw, check_laws, residual_mass


def block_thresholds(
    ratio: Tensor, p: Tensor | LogLaw, q: Tensor | LogLaw, drawn: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Thresholds h and prefix weights P of "Block Verification Accelerates Speculative Decoding", both float [B, K + 1].

    P_0 = 1, P_i = min(1, P_{i-1} ratio_i); Z_i = sum_x [P_i p_i(x) - q_i(x)]+; h_i = Z_i / (Z_i + 1 - P_i) where value i + 1
    was drawn, else h_i = P_i.

    ratio: float [B, K], p(x)/q(x) of each drafted value.   p: [B, K + 1, V], law after node i; q: [B, K, V], law value
    i + 1 was drawn from.   drawn: bool [B, K] a prefix of ones, or None for all.
    """
    expect("ratio", ratio, WIDE, p.shape[0], p.shape[1] - 1)
    check_laws(p, q)
    if q.shape[1] != ratio.shape[1]:
        raise ValueError(f"q: expected {ratio.shape[1]} rows, one a drafted value, got {q.shape[1]}")
    if drawn is not None:
        expect("drawn", drawn, BOOL, *ratio.shape)
    if isinstance(p, LogLaw) or on_kernels(ratio):
        from mmspec.kernels.gpu.block import launch_heights, launch_walk

        weight = launch_walk(ratio)
        before = weight[:, :-1].contiguous()
        return launch_heights(residual_mass(p, q, before, torch.ones_like(before)), weight, drawn), weight
    return block_thresholds_reference(ratio, p, q, drawn)


def block_thresholds_reference(ratio: Tensor, p: Tensor, q: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
    # log P is a walk held below 0: its closed form is the walk minus its running maximum
    walk = torch.nn.functional.pad(ratio.log(), (1, 0)).cumsum(-1)
    weight = (walk - walk.cummax(-1).values).exp()
    before = weight[:, :-1]
    mass = residual_mass(p[:, :-1], q, before, torch.ones_like(before))
    room = mass + (1 - before)
    height = torch.where(room == 0, 1.0, mass / room)
    height = height if drawn is None else torch.where(drawn, height, before)
    return torch.cat((height, weight[:, -1:]), 1), weight
