"""The walk of block verification and its heights, a program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import launch, tile_of


@triton.jit
def larger(a, b):
    return tl.where((a > b) | (a != a), a, b)  # propagates NaN


@triton.jit(do_not_specialize=["count"])
def walk_kernel(p_ratio, p_weight, count, NODES: tl.constexpr):
    b = tl.cast(tl.program_id(0), tl.int64)
    i = tl.arange(0, NODES)
    ratio = tl.load(p_ratio + b * count + i - 1, mask=(i > 0) & (i <= count), other=1.0)
    walk = tl.cumsum(tl.log(ratio), 0)
    weight = tl.exp(walk - tl.associative_scan(walk, 0, larger))
    tl.store(p_weight + b * (count + 1) + i, weight, mask=i <= count)


def launch_walk(ratio: Tensor) -> Tensor:
    batch, count = ratio.shape
    weight = ratio.new_empty(batch, count + 1)
    launch(walk_kernel, (batch,), ratio.contiguous(), weight, count, NODES=tile_of(count + 1, 1 << 16))
    return weight


@triton.jit(do_not_specialize=["count"])
def heights_kernel(p_mass, p_weight, p_drawn, p_height, count, RAGGED: tl.constexpr, NODES: tl.constexpr):
    b = tl.cast(tl.program_id(0), tl.int64)
    i = tl.arange(0, NODES)
    inner = i < count
    weight = tl.load(p_weight + b * (count + 1) + i, mask=i <= count, other=1.0)
    mass = tl.load(p_mass + b * count + i, mask=inner, other=0.0)
    room = mass + (1 - weight)
    height = tl.where(room == 0, 1.0, mass / tl.where(room == 0, 1.0, room))
    if RAGGED:
        inner = inner & (tl.load(p_drawn + b * count + i, mask=inner, other=0) != 0)
    tl.store(p_height + b * (count + 1) + i, tl.where(inner, height, weight), mask=i <= count)


def launch_heights(mass: Tensor, weight: Tensor, drawn: Tensor | None) -> Tensor:
    batch, count = mass.shape
    height = torch.empty_like(weight)
    launch(
        heights_kernel, (batch,), mass, weight, mass if drawn is None else drawn.contiguous(), height, count,
        RAGGED=drawn is not None, NODES=tile_of(count + 1, 1 << 16),
    )  # fmt: skip
    return height
