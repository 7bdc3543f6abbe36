"""Counter-based random numbers: 53 bits for every (seed of a row, stream, lane), the same on every device and in every
slot of a batch. Kernel and reference give the same bits. Without state or host read, so a stream number on the device
works too."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.dispatch import INDEX, expect, expect_dense, on_kernels

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # a logical shift: int64 shifts are arithmetic


def mix(x: Tensor) -> Tensor:
    """Apply the finaliser of SplitMix64 ("Fast splittable pseudorandom number generators"), a bijection of 64 bits."""
    x = (x ^ shift(x, 30)) * _MIX1
    x = (x ^ shift(x, 27)) * _MIX2
    return x ^ shift(x, 31)


def mix_int(x: int) -> int:
    """`mix` of a Python int as a signed 64-bit number, without tensor calls."""
    mask = (1 << 64) - 1
    x &= mask
    x = (x ^ x >> 30) * _MIX1 & mask
    x = (x ^ x >> 27) * _MIX2 & mask
    x ^= x >> 31
    return x - (x >> 63 << 64)


def row_keys(seeds: Tensor, stream: int | Tensor) -> Tensor:
    """Return the key of every row in a stream, int64 [B]; `stream` is an int or an int64 scalar tensor."""
    return mix(seeds ^ (mix(stream * GOLDEN) if isinstance(stream, Tensor) else mix_int(stream * GOLDEN)))


def uniforms(seeds: Tensor, stream: int | Tensor, lanes: int) -> Tensor:
    """Return float64 [B, lanes] in [0, 1), multiples of 2^-53, for seeds int64 [B]; `stream` is an int or an int64
    scalar."""
    expect("seeds", seeds, INDEX, None)
    if isinstance(stream, Tensor):
        expect("stream", stream, INDEX)
    if on_kernels(seeds):
        from mmspec.kernels.gpu.counter import launch_uniforms

        expect_dense("seeds", seeds)
        return launch_uniforms(seeds, stream, lanes)
    return uniforms_reference(seeds, stream, lanes)


def uniforms_reference(seeds: Tensor, stream: int | Tensor, lanes: int) -> Tensor:
    lane = torch.arange(1, lanes + 1, device=seeds.device) * GOLDEN
    bits = mix(row_keys(seeds, stream)[:, None] + lane)
    return shift(bits, 11).double() * 2.0**-53
