"""Reflection coupling, a program per value."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import launch, tile_of
from mmspec.kernels.log_law import TINY


@triton.jit
def standard(p_value, p_draft, p_mean, p_scale, row, o, SIZE: tl.constexpr, EACH: tl.constexpr):
    """Return z and D of the components o, 0 outside, and the mean and the scale."""
    inside = o < SIZE
    value = tl.load(p_value + row * SIZE + o, mask=inside, other=0.0)
    draft = tl.load(p_draft + row * SIZE + o, mask=inside, other=0.0)
    mean = tl.load(p_mean + row * SIZE + o, mask=inside, other=0.0)
    scale = tl.load(p_scale + row * SIZE + o, mask=inside, other=1.0) if EACH else tl.load(p_scale + row)
    return tl.where(inside, (value - draft) / scale, 0.0), tl.where(inside, (draft - mean) / scale, 0.0), mean, scale


@triton.jit
def log_ratio_kernel(
    p_value, p_draft, p_mean, p_scale, p_out, SIZE: tl.constexpr, EACH: tl.constexpr, TILE: tl.constexpr
):
    row = tl.cast(tl.program_id(0), tl.int64)
    total = tl.zeros((TILE,), dtype=p_out.dtype.element_ty)
    for start in range(0, SIZE, TILE):
        z, gap, _, _ = standard(p_value, p_draft, p_mean, p_scale, row, start + tl.arange(0, TILE), SIZE, EACH)
        total += gap * (z + gap / 2)
    tl.store(p_out + row, -tl.sum(total, 0))


@triton.jit
def reflect_point_kernel(
    p_value,
    p_draft,
    p_mean,
    p_scale,
    p_out,
    SIZE: tl.constexpr,
    EACH: tl.constexpr,
    TINY: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.cast(tl.program_id(0), tl.int64)
    across = tl.zeros((TILE,), dtype=p_out.dtype.element_ty)
    square = tl.zeros((TILE,), dtype=p_out.dtype.element_ty)
    for start in range(0, SIZE, TILE):
        z, gap, _, _ = standard(p_value, p_draft, p_mean, p_scale, row, start + tl.arange(0, TILE), SIZE, EACH)
        across += gap * z
        square += gap * gap
    norm = tl.sum(square, 0)
    along = tl.sum(across, 0) / tl.where(norm < TINY, TINY, norm)
    for start in range(0, SIZE, TILE):
        o = start + tl.arange(0, TILE)
        z, gap, mean, scale = standard(p_value, p_draft, p_mean, p_scale, row, o, SIZE, EACH)
        tl.store(p_out + row * SIZE + o, mean + scale * (z - 2 * along * gap), mask=o < SIZE)


def launch_log_ratio(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    x, mq, mp, s = _aligned(value, draft_mean, mean, scale)
    out, size = x.new_empty(len(x)), x.shape[1]
    launch(log_ratio_kernel, (len(x),), x, mq, mp, s, out, SIZE=size, EACH=s.shape[1] == size, TILE=tile_of(size, 1024))
    return out.view(torch.broadcast_shapes(value.shape, draft_mean.shape, mean.shape)[:-1])


def launch_reflect_point(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    x, mq, mp, s = _aligned(value, draft_mean, mean, scale)
    out, size = torch.empty_like(x), x.shape[1]
    launch(
        reflect_point_kernel,
        (len(x),),
        x,
        mq,
        mp,
        s,
        out,
        SIZE=size,
        EACH=s.shape[1] == size,
        TINY=TINY,
        TILE=tile_of(size, 1024),
    )
    return out.view(torch.broadcast_shapes(value.shape, draft_mean.shape, mean.shape))


def _aligned(value: Tensor, draft_mean: Tensor, mean: Tensor, scale: Tensor) -> list[Tensor]:
    """Return the four tensors as dense rows [M, d] (scale [M, 1] or [M, d]) of a common dtype."""
    shape = torch.broadcast_shapes(value.shape, draft_mean.shape, mean.shape)
    dtype = torch.promote_types(torch.promote_types(value.dtype, mean.dtype), scale.dtype)
    rows = [t.to(dtype).expand(shape).reshape(-1, shape[-1]) for t in (value, draft_mean, mean)]
    return [*rows, scale.to(dtype).expand(*shape[:-1], scale.shape[-1]).reshape(-1, scale.shape[-1])]
