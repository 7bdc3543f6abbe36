"""Thresholds along a chain, all positions at once: token by token, and block verification of tokens or of Gaussians.

A ratio of NaN makes all later weights NaN, which pass nothing; the ratio is 0 where q is 0 at a drafted value. For
Gaussians of equal scale everything happens on the line through both means. Let z be the coordinate on it in units of
the scale, from p's mean away from q's, and D the distance of the means. Then p is phi(z), q is phi(z + D), and P p > q
where z > c = -log(P) / D - D / 2."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.special import ndtr

from mmspec.kernels.dispatch import BOOL, INDEX, WIDE, expect, on_kernels
from mmspec.kernels.law import check_laws, ratio_of, residual_mass
from mmspec.kernels.log_law import TINY, LogLaw


def block_thresholds(
    child_p: Tensor,
    child_q: Tensor,
    p: Tensor | LogLaw,
    q: Tensor | LogLaw,
    row: Tensor,
    live: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return thresholds h and prefix weights P, and 1 for nodes that were drawn on; float [B, N]. "Block Verification
    Accelerates Speculative Decoding": P_0 = 1, P_i = min(1, P_{i-1} p(x_i) / q(x_i)), Z_i = sum_x [P_i p_i(x) -
    q_i(x)]+; h_i = Z_i / (Z_i + 1 - P_i) where value i + 1 was drawn, else h_i = P_i. It takes p [B, N, V] after each
    node, q [B, M, V], child_p and child_q [B, N] of the node's own token, and row int64 [N] of q for the next value.
    `live` bool [B, N] marks a prefix of the nodes, None for all; other nodes have the threshold 0."""
    expect("child_p", child_p, WIDE, *p.shape[:2])
    expect("child_q", child_q, WIDE, *p.shape[:2])
    expect("row", row, INDEX, p.shape[1])
    check_laws(p, q)
    if live is not None:
        expect("live", live, BOOL, *child_p.shape)
    if isinstance(p, LogLaw) or on_kernels(child_p):
        from mmspec.kernels.gpu.block_verification import launch_block

        return launch_block(child_p, child_q, p, q, row, live)
    return block_thresholds_reference(child_p, child_q, p, q, row, live)


def block_thresholds_reference(
    child_p: Tensor, child_q: Tensor, p: Tensor, q: Tensor, row: Tensor, live: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    ratio = ratio_of(child_p, child_q)[:, 1:]
    drawn = None if live is None else live[:, 1:]
    weight = _prefix_weights((ratio if drawn is None else torch.where(drawn, ratio, 1.0)).log())
    before = weight[:, :-1]
    mass = residual_mass(p[:, :-1], q.index_select(1, row[:-1]), before, torch.ones_like(before))
    height = _heights(mass, weight, drawn)
    followed = torch.ones_like(before) if drawn is None else drawn.to(weight.dtype)
    followed = torch.nn.functional.pad(followed, (0, 1))
    return height if live is None else torch.where(live, height, 0.0), weight, followed


def token_thresholds(child_p: Tensor, child_q: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return min(1, p / q) of every node of a chain, 1, and 1 for nodes that were drawn on; arguments as in
    `block_thresholds`, all float [B, N]. "Fast Inference from Transformers via Speculative Decoding"."""
    expect("child_p", child_p, WIDE, None, None)
    expect("child_q", child_q, WIDE, *child_p.shape)
    if live is not None:
        expect("live", live, BOOL, *child_p.shape)
    if on_kernels(child_p):
        from mmspec.kernels.gpu.block_verification import launch_token

        return launch_token(child_p, child_q, live)
    return token_thresholds_reference(child_p, child_q, live)


def token_thresholds_reference(child_p: Tensor, child_q: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    threshold = ratio_of(child_p, child_q).clamp_max(1)
    one = torch.ones_like(threshold)
    followed = one[:, 1:] if live is None else live[:, 1:].to(one.dtype)
    followed = torch.nn.functional.pad(followed, (0, 1))
    return threshold if live is None else torch.where(live, threshold, 0.0), one, followed


def _prefix_weights(log_ratio: Tensor) -> Tensor:
    """Return P [B, K + 1]: log P is a walk capped at 0, whose closed form is the walk minus its running maximum."""
    walk = torch.nn.functional.pad(log_ratio, (1, 0)).cumsum(-1)
    return (walk - walk.cummax(-1).values).exp()


def _heights(mass: Tensor, weight: Tensor, drawn: Tensor | None) -> Tensor:
    """Return h [B, K + 1] from masses Z [B, K] and weights P [B, K + 1]."""
    before = weight[:, :-1]
    room = mass + (1 - before)
    height = torch.where(room == 0, 1.0, mass / room)
    height = height if drawn is None else torch.where(drawn, height, before)
    return torch.cat((height, weight[:, -1:]), 1)


_HALVINGS = 64
_TAIL = 10.0  # standard deviations beyond which less than 1e-23 of a normal lies


def excess_mass(weight: Tensor, gap: Tensor) -> Tensor:
    """Return the integral of [P p - q]+ for weights P and gaps D, all float64 [...]: P Phi(-c) - Phi(-c - D)."""
    c = _crossing(weight, gap)
    return (weight * ndtr(-c) - ndtr(-c - gap)).clamp_min(0)


def excess_draw(weight: Tensor, gap: Tensor, uniform: Tensor) -> Tensor:
    """Return the coordinate along the line of a draw from the normalised [P p - q]+; arguments float64 [...], P in [0,
    1]. The distribution function is inverted by bisection up to rounding. Other coordinates are those of p. The result
    is finite but without meaning where the mass is 0."""
    low = _crossing(weight, gap).clamp(-1e6, 1e6)
    high = low.clamp_min(0) + _TAIL
    tail = (1 - uniform) * excess_mass(weight, gap)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = weight * ndtr(-middle) - ndtr(-middle - gap) > tail
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def gaussian_block_thresholds(log_ratio: Tensor, gap: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Return thresholds h and prefix weights P, both float64 [B, K + 1], as `block_thresholds` does for tokens: Z_i is
    the integral of [P_i p_i - q_i]+. It takes log p(x) / q(x) of each drafted value and the gap D, float64 [B, K], and
    `drawn` bool [B, K], True for a prefix."""
    weight = _prefix_weights(torch.where(drawn, log_ratio, 0.0))
    return _heights(excess_mass(weight[:, :-1], gap), weight, drawn), weight


def _crossing(weight: Tensor, gap: Tensor) -> Tensor:
    gap = gap.clamp_min(TINY)
    return -weight.log() / gap - gap / 2
