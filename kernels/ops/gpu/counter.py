"""Uniform numbers of many rows in a single launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import ceil_div, lane_bits, launch, row_key, tile_of


@triton.jit(do_not_specialize=["stream", "lanes"])
def uniforms_kernel(p_seed, stream, p_stream, p_out, lanes, ON_DEVICE: tl.constexpr, TILE: tl.constexpr):
    b = tl.program_id(0)
    lane = tl.program_id(1) * TILE + tl.arange(0, TILE)
    number = tl.load(p_stream) if ON_DEVICE else tl.cast(stream, tl.int64)
    bits = lane_bits(row_key(p_seed, number, b), lane)
    out = p_out + tl.cast(b, tl.int64) * lanes + lane
    tl.store(out, bits.to(tl.float64) * 1.1102230246251565e-16, mask=lane < lanes)


def launch_uniforms(seeds: Tensor, stream: int | Tensor, lanes: int) -> Tensor:
    out = torch.empty(len(seeds), lanes, dtype=torch.float64, device=seeds.device)
    tile = tile_of(lanes, 1024)
    counted = isinstance(stream, Tensor)
    launch(
        uniforms_kernel,
        (len(seeds), ceil_div(lanes, tile)),
        seeds,
        0 if counted else stream,
        stream if counted else seeds,
        out,
        lanes,
        ON_DEVICE=counted,
        TILE=tile,
    )
    return out
