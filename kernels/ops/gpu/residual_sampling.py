"""Exponential races over tiles of the vocabulary, and the winner among the tiles."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import (
    TILE,
    ceil_div,
    lane_bits,
    launch,
    law_arguments,
    law_at,
    law_row,
    log1p_minus,
    row_key,
    span_of,
    tile_of,
    wide,
)
from mmspec.kernels.log_law import Residual

FORMS = {"scaled": 0, "kseq": 1, "without": 2}


@triton.jit
def winner(pace, o, V: tl.constexpr):
    """Return the best pace of a tile and the lowest id that has it."""
    pace = tl.where(pace == pace, pace, -1.0)
    best = tl.max(pace, 0)
    return best, tl.min(tl.where(pace == best, o, V), 0).to(tl.int64)


@triton.jit
def exponential(p_uniform, p_seed, stream, b, o, V: tl.constexpr, GIVEN: tl.constexpr, WIDE: tl.constexpr):
    """Return -log u of the lanes o. It uses w = 1 - u, which keeps its digits where u is near 1, as for winners."""
    if GIVEN:
        w = 1 - tl.load(p_uniform + b * V + o, mask=o < V, other=0.5)
    else:
        w = (9007199254740992 - lane_bits(row_key(p_seed, stream, b), o).to(tl.int64)).to(
            tl.float64
        ) * 1.1102230246251565e-16
    if WIDE == tl.float64:
        # Triton 3.6 would round a Python number to float32, here to 1
        e = -tl.log(1 - tl.minimum(w, tl.full((), 0.9999999999999999, tl.float64)))
    else:
        e = log1p_minus(tl.minimum(w.to(tl.float32), 0.99999994))
    return e


@triton.jit(do_not_specialize=["stream", "p_rows", "q_rows", "nodes"])
def race_kernel(
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
    p_node,
    p_q_row,
    p_alpha,
    p_beta,
    p_token,
    p_remove,
    p_seed,
    stream,
    p_stream,
    p_uniform,
    p_pace,
    p_mass,
    p_id,
    nodes,
    V: tl.constexpr,
    P_LOG: tl.constexpr,
    P_PICKED: tl.constexpr,
    Q_LOG: tl.constexpr,
    Q_PICKED: tl.constexpr,
    FORM: tl.constexpr,
    RAGGED: tl.constexpr,
    GIVEN: tl.constexpr,
    COUNTED: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
):
    b, tile = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    o = tile * TILE + tl.arange(0, TILE)
    node = tl.load(p_node + b)
    p, p_stat = law_row(p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, b, node, P_LOG, P_PICKED)
    mass = law_at(p, p_stat, o, o < V, P_LOG, WIDE)
    if FORM == 2:
        rest = mass
    else:
        row = tl.maximum(tl.load(p_q_row + node), 0)
        q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, row, Q_LOG, Q_PICKED)
        share = law_at(q, q_stat, o, o < V, Q_LOG, WIDE)
        alpha = tl.load(p_alpha + b * nodes + node).to(WIDE)
        beta = tl.load(p_beta + b * nodes + node).to(WIDE)
        rest = alpha * mass - beta * share if FORM == 0 else mass - alpha * tl.minimum(mass / beta, share)
        rest = tl.where(rest <= 0, 0.0, rest)
    if RAGGED:
        for i in range(nodes):
            removed = tl.load(p_remove + b * nodes + i) != 0
            rest = tl.where((o == tl.load(p_token + b * nodes + i)) & removed, 0.0, rest)
    number = tl.load(p_stream) if COUNTED else tl.cast(stream, tl.int64)
    e = exponential(p_uniform, p_seed, number, b, o, V, GIVEN, WIDE)
    first, first_id = winner(tl.where((rest > 0) & (o < V), rest / e, -1.0), o, V)
    plain, plain_id = winner(tl.where((mass > 0) & (o < V), mass / e, -1.0), o, V)
    out = b * tl.num_programs(1) + tile
    tl.store(p_mass + out, tl.sum(rest, 0))
    tl.store(p_pace + out * 2, first)
    tl.store(p_pace + out * 2 + 1, plain)
    tl.store(p_id + out * 2, first_id)
    tl.store(p_id + out * 2 + 1, plain_id)


@triton.jit(do_not_specialize=["tiles"])
def race_end_kernel(p_pace, p_mass, p_id, p_out, tiles, TILES: tl.constexpr, V: tl.constexpr):
    b = tl.cast(tl.program_id(0), tl.int64)
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    which = tl.where(tl.sum(tl.load(p_mass + b * tiles + tile, mask=inside, other=0.0), 0) > 0, 0, 1)
    o = (b * tiles + tile) * 2 + which
    pace = tl.load(p_pace + o, mask=inside, other=-2.0)
    ids = tl.load(p_id + o, mask=inside, other=V)
    token = tl.min(tl.where(pace == tl.max(pace, 0), ids, V), 0)
    tl.store(p_out + b, tl.minimum(token, V - 1))


def launch_residual_sample(
    residual: Residual, node: Tensor, seeds: Tensor, stream: int | Tensor, uniform: Tensor | None
) -> Tensor:
    """`uniform` float64 [B, V] replaces the stream's lanes."""
    node, seeds = node.contiguous(), seeds.contiguous()
    p, q = residual.p, residual.p if residual.q is None else residual.q
    of_p, (p_log, p_picked) = law_arguments(p)
    of_q, (q_log, q_picked) = law_arguments(q)
    batch, nodes, size = p.shape
    tile = min(span_of(size, batch, 1024), TILE)
    tiles, device = ceil_div(size, tile), node.device
    pace, mass = (torch.empty(batch, tiles, n, dtype=p.dtype, device=device) for n in (2, 1))
    ids = torch.empty(batch, tiles, 2, dtype=torch.int64, device=device)
    out, counted = torch.empty(batch, dtype=torch.int64, device=device), isinstance(stream, Tensor)
    rest = (residual.q_row, residual.alpha, residual.beta, residual.token, residual.remove)
    launch(
        race_kernel,
        (batch, tiles),
        *of_p,
        *of_q,
        node,
        *(node if t is None else t.contiguous() for t in rest),
        seeds,
        0 if counted else stream,
        stream if counted else seeds,
        seeds if uniform is None else uniform.contiguous(),
        pace,
        mass,
        ids,
        nodes,
        V=size,
        P_LOG=p_log,
        P_PICKED=p_picked,
        Q_LOG=q_log,
        Q_PICKED=q_picked,
        FORM=FORMS[residual.form],
        RAGGED=residual.remove is not None,
        GIVEN=uniform is not None,
        COUNTED=counted,
        WIDE=wide(p.dtype),
        TILE=tile,
    )
    launch(race_end_kernel, (batch,), pace, mass, ids, out, tiles, TILES=tile_of(tiles, 1 << 16), V=size, num_warps=1)
    return out
