"""Selection in one small program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import launch, tile_of


@triton.jit(do_not_specialize=["nodes", "s_tree", "s_ancestor"])
def select_kernel(
    p_threshold, p_uniform, p_parent, p_ancestor, p_rank, p_post, p_valid, p_node, nodes, s_tree, s_ancestor,
    DESCEND: tl.constexpr, RAGGED: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    b = tl.cast(tl.program_id(0), tl.int64)
    i, j = tl.arange(0, NODES), tl.arange(0, NODES)
    o_i, o_j = b * nodes + i, b * nodes + j
    there = j < nodes
    # both views of one vector: along rows and along columns of the pairs
    passes_i = tl.load(p_uniform + o_i, mask=i < nodes, other=1.0) < tl.load(
        p_threshold + o_i, mask=i < nodes, other=0.0
    )
    passes_j = tl.load(p_uniform + o_j, mask=there, other=1.0) < tl.load(p_threshold + o_j, mask=there, other=0.0)
    valid_j = there
    if RAGGED:
        passes_i = passes_i & (tl.load(p_valid + o_i, mask=i < nodes, other=0) != 0)
        valid_j = tl.load(p_valid + o_j, mask=there, other=0) != 0
        passes_j = passes_j & valid_j
    pair = (i < nodes)[:, None] & there[None, :]
    above = tl.load(p_ancestor + b * s_ancestor + i[:, None] * nodes + j[None, :], mask=pair, other=0) != 0
    if DESCEND:
        tree = b * s_tree
        parent_i = tl.load(p_parent + tree + i, mask=i < nodes, other=-1)
        parent_j = tl.load(p_parent + tree + j, mask=there, other=-1)
        rank_i = tl.load(p_rank + tree + i, mask=i < nodes, other=0)
        rank_j = tl.load(p_rank + tree + j, mask=there, other=0)
        # an earlier sibling that passes hides the later ones; columns hide rows, then rows and columns change places
        sibling = (parent_i[:, None] == parent_j[None, :]) & (i > 0)[:, None] & (j > 0)[None, :]
        hidden = sibling & passes_i[:, None] & (rank_i[:, None] < rank_j[None, :])
        stands = (passes_j & (tl.max(hidden.to(tl.int32), 0) == 0)) | (j == 0)
        candidate = i < nodes
    else:
        stands = valid_j | (j == 0)
        candidate = passes_i
    broken = above & (stands == 0)[None, :]
    candidate = (candidate & (tl.max(broken.to(tl.int32), 1) == 0)) | (i == 0)
    post = tl.load(p_post + b * s_tree + i, mask=i < nodes, other=0)
    key = tl.where(candidate & (i < nodes), post, nodes + 1)
    tl.store(p_node + b, tl.argmin(key, 0).to(tl.int64))


def launch_select(
    threshold: Tensor, uniform: Tensor, parent: Tensor, ancestor: Tensor, sibling_rank: Tensor, post_rank: Tensor,
    valid: Tensor | None, descend: bool,
) -> Tensor:  # fmt: skip
    batch, nodes = threshold.shape
    out = torch.empty(batch, dtype=torch.int64, device=threshold.device)
    shared = ancestor.shape[0] == 1
    ints = [t.contiguous() for t in (parent, ancestor, sibling_rank, post_rank)]
    launch(
        select_kernel, (batch,), threshold.contiguous(), uniform.contiguous(), *ints,
        threshold if valid is None else valid.contiguous(), out, nodes, 0 if shared else nodes,
        0 if shared else nodes * nodes, DESCEND=descend, RAGGED=valid is not None, NODES=tile_of(nodes, 1 << 16),
    )  # fmt: skip
    return out
