"""Thresholds of block verification along a chain of tokens or of Gaussians, all positions at once.

A ratio of NaN makes NaN of the weights behind it, which pass nothing. On kernels the walk, the masses and the heights are a
launch each, whatever the length.

For Gaussians of one scale a position everything happens along the line through both means. With z the coordinate on it, in
units of the scale, from p's mean away from q's, p is phi(z), q is phi(z + D), and P p > q where z > c = -log(P) / D - D / 2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.special import ndtr

from mmspec.kernels.dispatch import BOOL, WIDE, expect, on_kernels
from mmspec.kernels.law import check_laws, residual_mass
from mmspec.kernels.log_law import TINY, LogLaw


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
        from mmspec.kernels.gpu.block_verification import launch_heights, launch_walk

        weight = launch_walk(ratio)
        before = weight[:, :-1].contiguous()
        return launch_heights(residual_mass(p, q, before, torch.ones_like(before)), weight, drawn), weight
    return block_thresholds_reference(ratio, p, q, drawn)


def block_thresholds_reference(ratio: Tensor, p: Tensor, q: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
    weight = _prefix_weights(ratio.log())
    before = weight[:, :-1]
    mass = residual_mass(p[:, :-1], q, before, torch.ones_like(before))
    return _heights(mass, weight, drawn), weight


def _prefix_weights(log_ratio: Tensor) -> Tensor:
    """P [B, K + 1]: log P is a walk held below 0, whose closed form is the walk minus its running maximum."""
    walk = torch.nn.functional.pad(log_ratio, (1, 0)).cumsum(-1)
    return (walk - walk.cummax(-1).values).exp()


def _heights(mass: Tensor, weight: Tensor, drawn: Tensor | None) -> Tensor:
    """h [B, K + 1] of masses Z [B, K] and weights P [B, K + 1]."""
    before = weight[:, :-1]
    room = mass + (1 - before)
    height = torch.where(room == 0, 1.0, mass / room)
    height = height if drawn is None else torch.where(drawn, height, before)
    return torch.cat((height, weight[:, -1:]), 1)


_HALVINGS = 64
_TAIL = 10.0  # standard deviations beyond which less than 1e-23 of a normal lies


def excess_mass(weight: Tensor, gap: Tensor) -> Tensor:
    """The integral of [P p - q]+, float64 [...]: P Phi(-c) - Phi(-c - D). weight: P in [0, 1]; gap: D, both float64 [...]."""
    c = _crossing(weight, gap)
    return (weight * ndtr(-c) - ndtr(-c - gap)).clamp_min(0)


def excess_draw(weight: Tensor, gap: Tensor, uniform: Tensor) -> Tensor:
    """The coordinate along the line of a draw from [P p - q]+ normalised, float64 [...]; the other coordinates are p's.

    By bisection of its distribution function, to rounding, at uniform float64 [...] in [0, 1). Finite, but of no
    meaning, where the mass is 0.
    """
    low = _crossing(weight, gap).clamp(-1e6, 1e6)
    high = low.clamp_min(0) + _TAIL
    wanted = (1 - uniform) * excess_mass(weight, gap)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = weight * ndtr(-middle) - ndtr(-middle - gap) > wanted
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def gaussian_block_thresholds(log_ratio: Tensor, gap: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Thresholds h and prefix weights P, both float64 [B, K + 1], as `block_thresholds` gives them for tokens.

    P_0 = 1, P_i = min(1, P_{i-1} ratio_i); Z_i = integral of [P_i p_i - q_i]+; h_i = Z_i / (Z_i + 1 - P_i) where value
    i + 1 was drawn, else h_i = P_i.   log_ratio: float64 [B, K], log p(x)/q(x) of each drafted value.
    gap: float64 [B, K], distance of the two means it was drawn from and is judged by, in units of the scale.
    drawn: bool [B, K], a prefix of ones.
    """
    weight = _prefix_weights(torch.where(drawn, log_ratio, 0.0))
    return _heights(excess_mass(weight[:, :-1], gap), weight, drawn), weight


def _crossing(weight: Tensor, gap: Tensor) -> Tensor:
    gap = gap.clamp_min(TINY)
    return -weight.log() / gap - gap / 2
