"""Moving what a path leaves: a program for each layer, row and head of every pool, and one for each hidden state."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import launch, tile_of


@triton.jit
def move_row(p_pool, p_source, width, s_slot, SIZE: tl.constexpr, TILE: tl.constexpr):
    """One head's slots, front to back: nothing is written to a slot that is still to be read."""
    o = tl.arange(0, TILE)
    for r in range(width):
        a = tl.load(p_source + r)
        if a != r:
            held = tl.load(p_pool + a * s_slot + o, mask=o < SIZE)
            tl.debug_barrier()  # no warp runs ahead and writes what another has yet to read
            tl.store(p_pool + r * s_slot + o, held, mask=o < SIZE)


@triton.jit(do_not_specialize=["width", "rows", "heads"])
def move_kernel(
    p_key, p_value, p_length, p_source, width, rows, heads,
    k_layer, k_row, k_head, k_slot, v_layer, v_row, v_head, v_slot,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEY_TILE: tl.constexpr, VALUE_TILE: tl.constexpr,
):  # fmt: skip
    at = tl.cast(tl.program_id(0), tl.int64)
    layer, row, head = at // (rows * heads), at // heads % rows, at % heads
    start = tl.load(p_length + row)
    key = p_key + layer * k_layer + row * k_row + head * k_head + start * k_slot
    move_row(key, p_source + row * width, width, k_slot, KEY, KEY_TILE)
    value = p_value + layer * v_layer + row * v_row + head * v_head + start * v_slot
    move_row(value, p_source + row * width, width, v_slot, VALUE, VALUE_TILE)


def launch_move(keys: Tensor, values: Tensor, length: Tensor, source: Tensor) -> None:
    layers, rows, heads = keys.shape[:3]
    launch(
        move_kernel, (layers * rows * heads,), keys, values, length.contiguous(), source.contiguous(), source.shape[1],
        rows, heads, *keys.stride()[:4], *values.stride()[:4], KEY=keys.shape[4], VALUE=values.shape[4],
        KEY_TILE=tile_of(keys.shape[4], 1 << 16), VALUE_TILE=tile_of(values.shape[4], 1 << 16),
    )  # fmt: skip


@triton.jit(do_not_specialize=["nodes", "width"])
def take_kernel(p_states, p_node, p_out, nodes, width, SIZE: tl.constexpr, TILE: tl.constexpr):
    at = tl.cast(tl.program_id(0), tl.int64)
    o = tl.program_id(1) * TILE + tl.arange(0, TILE)
    node = at // width * nodes + tl.load(p_node + at)
    tl.store(p_out + at * SIZE + o, tl.load(p_states + node * SIZE + o, mask=o < SIZE), mask=o < SIZE)


def launch_take(states: Tensor, node: Tensor) -> Tensor:
    batch, nodes = states.shape[:2]
    width, size = node.shape[1], states[0, 0].numel()
    out = torch.empty(batch, width, *states.shape[2:], dtype=states.dtype, device=states.device)
    tile = tile_of(size)
    launch(
        take_kernel, (batch * width, triton.cdiv(size, tile)), states, node.contiguous(), out, nodes, width,
        SIZE=size, TILE=tile,
    )  # fmt: skip
    return out
