"""Thresholds of target-match in a small program per row, and the discount of K-SEQ by bisection in a program per node."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import launch, law_arguments, law_at, law_row, tile_of, wide
from mmspec.kernels.log_law import TINY, LogLaw


@triton.jit(do_not_specialize=["nodes", "s_earlier"])
def match_kernel(
    p_mass,
    p_token,
    p_earlier,
    p_live,
    p_out,
    nodes,
    s_earlier,
    RAGGED: tl.constexpr,
    TINY: tl.constexpr,
    NODES: tl.constexpr,
):
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
    behind = tl.load(tree + j[None, :] * nodes + i[:, None], mask=pair, other=0) != 0  # i is an earlier sibling of j
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
        match_kernel,
        (batch,),
        mass.contiguous(),
        token.contiguous(),
        earlier.contiguous(),
        mass if live is None else live.contiguous(),
        out,
        nodes,
        0 if earlier.shape[0] == 1 else nodes * nodes,
        RAGGED=live is not None,
        TINY=TINY,
        NODES=tile_of(nodes, 1 << 16),
    )
    return out


@triton.jit
def any_of(beta, count):
    """Return 1 - (1 - beta)^n as beta times the sum of (1 - beta)^i for i < n, without cancellation."""
    total, power = beta - beta, beta - beta + 1
    for _ in range(count):
        total += power
        power *= 1 - beta
    return beta * total


@triton.jit
def overlap(
    p,
    p_stat,
    q,
    q_stat,
    rho,
    V: tl.constexpr,
    P_LOG: tl.constexpr,
    Q_LOG: tl.constexpr,
    WIDE: tl.constexpr,
    TINY: tl.constexpr,
    TILE: tl.constexpr,
):
    total = tl.zeros((TILE,), dtype=WIDE)
    for start in range(0, V, TILE):
        o = start + tl.arange(0, TILE)
        mass, share = law_at(p, p_stat, o, o < V, P_LOG, WIDE), law_at(q, q_stat, o, o < V, Q_LOG, WIDE)
        total += tl.minimum(mass, share * rho)
    return tl.minimum(tl.maximum(tl.sum(total, 0) / rho, TINY), 1.0)


@triton.jit(do_not_specialize=["p_rows", "q_rows", "nodes"])
def kseq_kernel(
    p_p,
    p_stats,
    p_row,
    p_s_batch,
    p_s_row,
    p_rows,
    q_q,
    q_stats,
    q_row,
    q_s_batch,
    q_s_row,
    q_rows,
    p_count,
    p_rho,
    p_scale,
    nodes,
    V: tl.constexpr,
    P_LOG: tl.constexpr,
    P_PICKED: tl.constexpr,
    Q_LOG: tl.constexpr,
    Q_PICKED: tl.constexpr,
    WIDE: tl.constexpr,
    TINY: tl.constexpr,
    STEPS: tl.constexpr,
    TILE: tl.constexpr,
):
    node = tl.program_id(0)
    b, m = node // nodes, node % nodes
    p, p_stat = law_row(p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, b, m, P_LOG, P_PICKED)
    q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, m, Q_LOG, Q_PICKED)
    count = tl.load(p_count + node)
    low, high = tl.full((), 1.0, WIDE), tl.maximum(count, 1).to(WIDE)
    for _ in range(STEPS):
        middle = (low + high) / 2
        beta = overlap(p, p_stat, q, q_stat, middle, V, P_LOG, Q_LOG, WIDE, TINY, TILE)
        valid = any_of(beta, count) <= middle * beta
        low, high = tl.where(valid, low, middle), tl.where(valid, middle, high)
    beta = overlap(p, p_stat, q, q_stat, high, V, P_LOG, Q_LOG, WIDE, TINY, TILE)
    tl.store(p_rho + node, high)
    tl.store(p_scale + node, any_of(beta, count) / beta)


def launch_kseq(p: Tensor | LogLaw, q: Tensor | LogLaw, count: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    of_p, (p_log, p_picked) = law_arguments(p)
    of_q, (q_log, q_picked) = law_arguments(q)
    batch, nodes, size = p.shape
    rho, scale = (torch.empty(batch, nodes, dtype=p.dtype, device=p.device) for _ in range(2))
    launch(
        kseq_kernel,
        (batch * nodes,),
        *of_p,
        *of_q,
        count.contiguous(),
        rho,
        scale,
        nodes,
        V=size,
        P_LOG=p_log,
        P_PICKED=p_picked,
        Q_LOG=q_log,
        Q_PICKED=q_picked,
        WIDE=wide(p.dtype),
        TINY=TINY,
        STEPS=steps,
        TILE=tile_of(size),
    )
    return rho, scale
