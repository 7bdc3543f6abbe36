"""Selection in a program per row, moves of slots in a program per layer, row and head, gathers in a program per state."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import ceil_div, launch, tile_of


@triton.jit(do_not_specialize=["nodes", "s_tree", "s_ancestor", "width"])
def select_kernel(
    p_threshold,
    p_uniform,
    p_parent,
    p_ancestor,
    p_rank,
    p_post,
    p_valid,
    p_path,
    p_depth,
    p_node,
    p_taken,
    p_count,
    nodes,
    s_tree,
    s_ancestor,
    width,
    DESCEND: tl.constexpr,
    RAGGED: tl.constexpr,
    NODES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    b = tl.cast(tl.program_id(0), tl.int64)
    i, j = tl.arange(0, NODES), tl.arange(0, NODES)
    o_i, o_j = b * nodes + i, b * nodes + j
    inside = j < nodes
    # the same vector twice: along rows and along columns of the pairs
    passes_i = tl.load(p_uniform + o_i, mask=i < nodes, other=1.0) < tl.load(
        p_threshold + o_i, mask=i < nodes, other=0.0
    )
    passes_j = tl.load(p_uniform + o_j, mask=inside, other=1.0) < tl.load(p_threshold + o_j, mask=inside, other=0.0)
    valid_j = inside
    if RAGGED:
        passes_i = passes_i & (tl.load(p_valid + o_i, mask=i < nodes, other=0) != 0)
        valid_j = tl.load(p_valid + o_j, mask=inside, other=0) != 0
        passes_j = passes_j & valid_j
    pair = (i < nodes)[:, None] & inside[None, :]
    above = tl.load(p_ancestor + b * s_ancestor + i[:, None] * nodes + j[None, :], mask=pair, other=0) != 0
    if DESCEND:
        tree = b * s_tree
        parent_i = tl.load(p_parent + tree + i, mask=i < nodes, other=-1)
        parent_j = tl.load(p_parent + tree + j, mask=inside, other=-1)
        rank_i = tl.load(p_rank + tree + i, mask=i < nodes, other=0)
        rank_j = tl.load(p_rank + tree + j, mask=inside, other=0)
        # an earlier sibling that passes hides later siblings: rows i are the earlier siblings of columns j
        sibling = (parent_i[:, None] == parent_j[None, :]) & (i > 0)[:, None] & (j > 0)[None, :]
        hidden = sibling & passes_i[:, None] & (rank_i[:, None] < rank_j[None, :])
        passable = (passes_j & (tl.max(hidden.to(tl.int32), 0) == 0)) | (j == 0)
        candidate = i < nodes
    else:
        passable = valid_j | (j == 0)
        candidate = passes_i
    broken = above & (passable == 0)[None, :]
    candidate = (candidate & (tl.max(broken.to(tl.int32), 1) == 0)) | (i == 0)
    post = tl.load(p_post + b * s_tree + i, mask=i < nodes, other=0)
    key = tl.where(candidate & (i < nodes), post, nodes + 1)
    node = tl.argmin(key, 0).to(tl.int64)
    tl.store(p_node + b, node)
    at, o = b * s_tree + node, tl.arange(0, WIDTH)
    tl.store(p_count + b, tl.load(p_depth + at))
    tl.store(p_taken + b * width + o, tl.load(p_path + at * width + o, mask=o < width, other=0), mask=o < width)


def launch_select(
    threshold: Tensor,
    uniform: Tensor,
    parent: Tensor,
    ancestor: Tensor,
    sibling_rank: Tensor,
    post_rank: Tensor,
    valid: Tensor | None,
    descend: bool,
    path: Tensor | None = None,
    depth: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the accepted node [B], its path [B, W] and its depth [B]; without a path the last two have no meaning."""
    batch, nodes = threshold.shape
    shared, device = ancestor.shape[0] == 1, threshold.device
    path = parent[..., None] if path is None else path
    node, count = torch.empty(2, batch, dtype=torch.int64, device=device).unbind()
    width = path.shape[2]
    accepted = torch.empty(batch, width, dtype=torch.int64, device=device)
    ints = [t.contiguous() for t in (parent, ancestor, sibling_rank, post_rank)]
    launch(
        select_kernel,
        (batch,),
        threshold.contiguous(),
        uniform.contiguous(),
        *ints,
        threshold if valid is None else valid.contiguous(),
        path.contiguous(),
        (parent if depth is None else depth).contiguous(),
        node,
        accepted,
        count,
        nodes,
        0 if shared else nodes,
        0 if shared else nodes * nodes,
        width,
        DESCEND=descend,
        RAGGED=valid is not None,
        NODES=tile_of(nodes, 1 << 16),
        WIDTH=tile_of(width, 1 << 16),
        num_warps=1 if nodes <= 32 else 4,  # a single warp has nothing to wait for
    )
    return node, accepted, count


@triton.jit
def move_row(p_pool, p_source, width, s_slot, SIZE: tl.constexpr, TILE: tl.constexpr):
    """Move a head's slots front to back, so that no slot is written before it is read."""
    o = tl.arange(0, TILE)
    for r in range(width):
        a = tl.load(p_source + r)
        if a != r:
            held = tl.load(p_pool + a * s_slot + o, mask=o < SIZE)
            tl.debug_barrier()  # no warp may overwrite a slot that another warp has not read yet
            tl.store(p_pool + r * s_slot + o, held, mask=o < SIZE)


@triton.jit(do_not_specialize=["width", "rows", "heads"])
def move_kernel(
    p_key,
    p_value,
    p_length,
    p_source,
    width,
    rows,
    heads,
    k_layer,
    k_row,
    k_head,
    k_slot,
    v_layer,
    v_row,
    v_head,
    v_slot,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
):
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
        move_kernel,
        (layers * rows * heads,),
        keys,
        values,
        length.contiguous(),
        source.contiguous(),
        source.shape[1],
        rows,
        heads,
        *keys.stride()[:4],
        *values.stride()[:4],
        KEY=keys.shape[4],
        VALUE=values.shape[4],
        KEY_TILE=tile_of(keys.shape[4], 1 << 16),
        VALUE_TILE=tile_of(values.shape[4], 1 << 16),
    )


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
        take_kernel,
        (batch * width, ceil_div(size, tile)),
        states,
        node.contiguous(),
        out,
        nodes,
        width,
        SIZE=size,
        TILE=tile,
    )
    return out
