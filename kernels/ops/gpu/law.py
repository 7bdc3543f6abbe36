"""Lookups in laws, masses of residuals, and laws written out."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import SPAN, launch, law_arguments, tile_of, wide
from mmspec.kernels.gpu.pieces import law_at, law_row
from mmspec.kernels.law import LogLaw


@triton.jit(do_not_specialize=["nodes", "rows"])
def mass_at_kernel(
    p_law, p_stats, p_row, s_batch, s_row, rows, p_at, s_at, p_token, s_token, p_out, nodes,
    V: tl.constexpr, LOG: tl.constexpr, PICKED: tl.constexpr, WIDE: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    b = tl.cast(tl.program_id(0), tl.int64)
    node = tl.arange(0, NODES)
    inside = node < nodes
    m = tl.maximum(tl.load(p_at + b * s_at + node, mask=inside, other=0), 0)
    token = tl.minimum(tl.maximum(tl.load(p_token + b * s_token + node, mask=inside, other=0), 0), V - 1)
    r = tl.load(p_row + m, mask=inside, other=0) if PICKED else m
    score = tl.load(p_law + b * s_batch + r * s_row + token, mask=inside, other=0.0).to(WIDE)
    if LOG:
        stats = p_stats + (b * rows + r) * 3
        score = score * tl.load(stats + 1, mask=inside, other=1.0)
        mass = tl.exp(score - tl.load(stats, mask=inside, other=0.0))
        mass = tl.where(score < tl.load(stats + 2, mask=inside, other=float("-inf")), 0.0 * mass, mass)
    else:
        mass = score
    tl.store(p_out + b * nodes + node, mass, mask=inside)


def launch_mass_at(law: Tensor | LogLaw, row: Tensor, token: Tensor) -> Tensor:
    given, (log, picked) = law_arguments(law)
    row, token = row.contiguous(), token.contiguous()
    batch, nodes = token.shape
    out = torch.empty(batch, nodes, dtype=law.dtype, device=token.device)
    launch(
        mass_at_kernel, (batch,), *given, row, nodes if len(row) > 1 else 0, token, nodes, out, nodes,
        V=law.shape[2], LOG=log, PICKED=picked, WIDE=wide(law.dtype), NODES=tile_of(nodes, 1 << 16),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows", "nodes"])
def dense_kernel(
    p_law, p_stats, p_row, s_batch, s_row, rows, p_out, nodes,
    V: tl.constexpr, PICKED: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    node, tile = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    law, stat = law_row(p_law, p_stats, p_row, s_batch, s_row, rows, node // nodes, node % nodes, True, PICKED)
    o = tile * TILE + tl.arange(0, TILE)
    tl.store(p_out + node * V + o, law_at(law, stat, o, o < V, True, WIDE), mask=o < V)


def launch_dense(law: LogLaw) -> Tensor:
    given, (_, picked) = law_arguments(law)
    batch, nodes, size = law.shape
    tile, out = tile_of(size), torch.empty(batch, nodes, size, dtype=law.dtype, device=law.device)
    launch(
        dense_kernel, (batch * nodes, triton.cdiv(size, tile)), *given, out, nodes,
        V=size, PICKED=picked, WIDE=wide(law.dtype), TILE=tile,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["p_rows", "q_rows", "nodes"])
def residual_mass_kernel(
    p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows,
    p_alpha, p_beta, p_out, nodes,
    V: tl.constexpr, P_LOG: tl.constexpr, P_PICKED: tl.constexpr, Q_LOG: tl.constexpr, Q_PICKED: tl.constexpr,
    WIDE: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    node, span = tl.program_id(0), tl.program_id(1)
    b, m = node // nodes, node % nodes
    p, p_stat = law_row(p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, b, m, P_LOG, P_PICKED)
    q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, m, Q_LOG, Q_PICKED)
    alpha, beta = tl.load(p_alpha + node).to(WIDE), tl.load(p_beta + node).to(WIDE)
    total = tl.zeros((TILE,), dtype=WIDE)
    for start in range(0, SPAN, TILE):
        o = span * SPAN + start + tl.arange(0, TILE)
        rest = alpha * law_at(p, p_stat, o, o < V, P_LOG, WIDE) - beta * law_at(q, q_stat, o, o < V, Q_LOG, WIDE)
        total += tl.where(rest <= 0, 0.0, rest)  # keeps what is not a number
    tl.store(p_out + tl.cast(node, tl.int64) * tl.num_programs(1) + span, tl.sum(total, 0))


def launch_residual_mass(p: Tensor | LogLaw, q: Tensor | LogLaw, alpha: Tensor, beta: Tensor) -> Tensor:
    of_p, (p_log, p_picked) = law_arguments(p)
    of_q, (q_log, q_picked) = law_arguments(q)
    batch, nodes = alpha.shape
    size, tile = p.shape[2], tile_of(p.shape[2])
    span = max(min(SPAN, triton.cdiv(size, tile) * tile), tile)
    spans = triton.cdiv(size, span)
    out = torch.empty(batch, nodes, spans, dtype=p.dtype, device=p.device)
    launch(
        residual_mass_kernel, (batch * nodes, spans), *of_p, *of_q, alpha.contiguous(), beta.contiguous(), out, nodes,
        V=size, P_LOG=p_log, P_PICKED=p_picked, Q_LOG=q_log, Q_PICKED=q_picked, WIDE=wide(p.dtype), TILE=tile, SPAN=span,
    )  # fmt: skip
    return out[..., 0] if spans == 1 else out.sum(-1)
