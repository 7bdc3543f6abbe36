"""Reflection-maximal coupling of two isotropic Gaussians of equal scale.

float32 or float64, summed in that dtype. A value, mean or scale of NaN gives a threshold that passes nothing. Strides:
any. Equal means give threshold 1 and the value itself."""

from __future__ import annotations

from torch import Tensor

from mmspec.kernels.dispatch import WIDE, on_kernels
from mmspec.kernels.log_law import TINY


def log_ratio(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return log p(x) / q(x) for p = N(mean, scale^2) and q = N(draft_mean, scale^2), float [...]: with z = (x -
    draft_mean) / scale and D = (draft_mean - mean) / scale it is -(|z + D|^2 - |z|^2) / 2. The scale is [..., 1] or
    [..., d]."""
    _check(value, draft_mean, mean, scale)
    if on_kernels(value):
        from mmspec.kernels.gpu.reflection_coupling import launch_log_ratio

        return launch_log_ratio(value, draft_mean, mean, scale)
    return log_ratio_reference(value, draft_mean, mean, scale)


def log_ratio_reference(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    gap = (draft_mean - mean) / scale
    z = (value - draft_mean) / scale
    return -(gap * (z + gap / 2)).sum(-1)


def reflect_threshold(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return min(1, p(x) / q(x)), float [...]; arguments as in `log_ratio`."""
    return log_ratio(value, draft_mean, mean, scale).clamp_max(0).exp()


def reflect_point(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return the rejected value's mirror image, a sample of p: mean + scale (z - 2 (e z) e), e = D / |D|, see
    `log_ratio`."""
    _check(value, draft_mean, mean, scale)
    if on_kernels(value):
        from mmspec.kernels.gpu.reflection_coupling import launch_reflect_point

        return launch_reflect_point(value, draft_mean, mean, scale)
    return reflect_point_reference(value, draft_mean, mean, scale)


def reflect_point_reference(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    gap = (draft_mean - mean) / scale
    z = (value - draft_mean) / scale
    along = (gap * z).sum(-1, keepdim=True) / gap.square().sum(-1, keepdim=True).clamp_min(TINY)
    return mean + scale * (z - 2 * along * gap)


def _check(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> None:
    for name, tensor in (("value", value), ("draft_mean", draft_mean), ("mean", mean), ("scale", scale)):
        if tensor.dtype not in WIDE or tensor.shape[-1] not in (
            1 if name == "scale" else mean.shape[-1],
            mean.shape[-1],
        ):
            raise ValueError(
                f"{name}: expected float32 or float64 [..., {mean.shape[-1]}], got {tensor.dtype} {list(tensor.shape)}"
            )
