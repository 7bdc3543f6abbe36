"""Thresholds of target-match in one small program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import launch, tile_of
from mmspec.kernels.law import TINY


@triton.jit(do_not_specialize=["nodes", "s_earlier"])
def match_kernel(
    p_mass, p_token, p_earlier, p_live, p_out, nodes, s_earlier,
    RAGGED: tl.constexpr, TINY: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    b = tl.cast(tl.program_id(0), tl.int64)
    i, j = tl.arange(0, NODES), tl.arange(0, NODES)
    # every vector twice, along rows and along columns of the pairs
    token_i = tl.load(p_token + b * nodes + i, mask=i < nodes, other=-1)
    token_j = tl.load(p_token + b * nodes + j, mask=j < nodes, other=-2)
    mass_i = tl.load(p_mass + b * nodes + i, mask=i < nodes, other=0.0)
    mass_j = tl.load(p_mass + b * nodes + j, mask=j < nodes, other=0.0)
    pair = (i < nodes)[:, None] & (j < nodes)[None, :]
    tree = p_earlier + b * s_earlier
    before = tl.load(tree + i[:, None] * nodes + j[None, :], mask=pair, other=0) != 0  # j is an earlier sibling of i
    behind = tl.load(tree + j[None, :] * nodes + i[:, None], mask=pair, other=0) != 0  # i of j
    same = token_i[:, None] == token_j[None, :]
    twin_i, twin_j = before & same, behind & same
    if RAGGED:
        live_i = tl.load(p_live + b * nodes + i, mask=i < nodes, other=0) != 0
        live_j = tl.load(p_live + b * nodes + j, mask=j < nodes, other=0) != 0
        twin_i, twin_j = twin_i & live_j[None, :], twin_j & live_i[:, None]
        mass_i, mass_j = tl.where(live_i, mass_i, 0.0), tl.where(live_j, mass_j, 0.0)
    fresh_i = tl.where(tl.max(twin_i.to(tl.int32), 1) > 0, 0.0, mass_i)
    fresh_j = tl.where(tl.max(twin_j.to(tl.int32), 0) > 0, 0.0, mass_j)
    left = 1 - tl.sum(tl.where(before, fresh_j[None, :], 0.0), 1)
    share = fresh_i / tl.where(left < TINY, TINY, left)
    tl.store(p_out + b * nodes + i, tl.where(share > 1, 1.0, share), mask=i < nodes)


def launch_match(mass: Tensor, token: Tensor, earlier: Tensor, live: Tensor | None) -> Tensor:
    batch, nodes = mass.shape
    out = torch.empty(batch, nodes, dtype=mass.dtype, device=mass.device)
    launch(
        match_kernel, (batch,), mass.contiguous(), token.contiguous(), earlier.contiguous(),
        mass if live is None else live.contiguous(), out, nodes, 0 if earlier.shape[0] == 1 else nodes * nodes,
        RAGGED=live is not None, TINY=TINY, NODES=tile_of(nodes, 1 << 16),
    )  # fmt: skip
    return out
