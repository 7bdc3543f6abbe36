"""Reflection-maximal coupling of two isotropic Gaussians of one scale."""

from __future__ import annotations

from torch import Tensor

from mmspec.kernels.law import TINY


def log_ratio(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """log p(x) / q(x) for p = N(mean, scale^2), q = N(draft_mean, scale^2), float [...].

    value, draft_mean, mean: float [..., d]; scale: [..., 1], or [..., d] where each component has its own. With
    z = (x - draft_mean) / scale and D = (draft_mean - mean) / scale this is -(|z + D|^2 - |z|^2) / 2.
    """
    gap = (draft_mean - mean) / scale
    z = (value - draft_mean) / scale
    return -(gap * (z + gap / 2)).sum(-1)


def reflect_threshold(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """min(1, p(x) / q(x)), float [...]; arguments as in `log_ratio`."""
    return log_ratio(value, draft_mean, mean, scale).clamp_max(0).exp()


def reflect_point(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """The rejected value's mirror image, a sample of p: mean + scale (z - 2 (e z) e), e = D / |D|. Same shapes."""
    gap = (draft_mean - mean) / scale
    z = (value - draft_mean) / scale
    along = (gap * z).sum(-1, keepdim=True) / gap.square().sum(-1, keepdim=True).clamp_min(TINY)
    return mean + scale * (z - 2 * along * gap)
