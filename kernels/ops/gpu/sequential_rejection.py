"""Sequential rejection of a node's children.

A vocabulary of a single span takes one launch, with a program per node. Wider vocabularies take two launches per rank:
spans in parallel, then a step of every node's scalars. Ranks are packed in a table [ranks, B, M] with missing children
marked, which fits trees of any shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import SPAN, launch, law_arguments, law_at, law_row, tile_of, wide
from mmspec.kernels.log_law import TINY, LogLaw


@triton.jit(do_not_specialize=["q_rows", "nodes", "ranks", "per_rank"])
def mass_left_kernel(
    q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, p_token, p_there, p_left, nodes, ranks, per_rank,
    V: tl.constexpr, Q_LOG: tl.constexpr, Q_PICKED: tl.constexpr, WIDE: tl.constexpr, TINY: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    node, rank = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1) + 1
    q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, node // nodes, node % nodes, Q_LOG, Q_PICKED)
    total = tl.zeros((TILE,), dtype=WIDE)
    for start in range(0, V, TILE):
        o = start + tl.arange(0, TILE)
        share = law_at(q, q_stat, o, o < V, Q_LOG, WIDE)
        for earlier in range(rank):
            removed = tl.load(p_there + earlier * per_rank + node) != 0
            share = tl.where((o == tl.load(p_token + earlier * per_rank + node)) & removed, 0.0, share)
        total += share
    left = tl.sum(total, 0)
    tl.store(p_left + rank * per_rank + node, tl.where(left < TINY, TINY, left))


def launch_mass_left(q: Tensor | LogLaw, token: Sequence[Tensor], drawn: Sequence[Tensor] | None) -> list[Tensor]:
    of_q, (q_log, q_picked) = law_arguments(q)
    batch, nodes, size = q.shape
    exists = _exists(token, drawn, nodes)
    left = torch.ones(len(token), batch, nodes, dtype=q.dtype, device=q.device)
    launch(
        mass_left_kernel, (batch * nodes, len(token) - 1), *of_q, _packed(token, nodes), exists, left, nodes, len(token),
        batch * nodes, V=size, Q_LOG=q_log, Q_PICKED=q_picked, WIDE=wide(q.dtype), TINY=TINY, TILE=tile_of(size),
    )  # fmt: skip
    return [left[rank, :, : tokens.shape[1]] for rank, tokens in enumerate(token)]


@triton.jit(do_not_specialize=["p_rows", "q_rows", "nodes", "ranks", "per_rank"])
def reject_kernel(
    p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows,
    p_weight, p_child, p_there, p_accept, p_state, nodes, ranks, per_rank,
    V: tl.constexpr, P_LOG: tl.constexpr, P_PICKED: tl.constexpr, Q_LOG: tl.constexpr, Q_PICKED: tl.constexpr,
    WIDE: tl.constexpr, TINY: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    node = tl.cast(tl.program_id(0), tl.int64)
    b, m = node // nodes, node % nodes
    p, p_stat = law_row(p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, b, m, P_LOG, P_PICKED)
    q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, m, Q_LOG, Q_PICKED)
    a = tl.load(p_weight + node).to(WIDE)
    upper, lower = a, a - a
    for rank in range(ranks):
        o_child = (rank * 4) * per_rank + node
        px, qx = tl.load(p_child + o_child).to(WIDE), tl.load(p_child + o_child + per_rank).to(WIDE)
        share = tl.load(p_child + o_child + 2 * per_rank).to(WIDE)
        scale = tl.load(p_child + o_child + 3 * per_rank).to(WIDE)
        there = tl.load(p_there + rank * per_rank + node) != 0
        accept = (upper * px - lower * qx) / share
        accept = tl.where(accept < 0, 0.0, tl.where(accept > 1, 1.0, accept))
        tl.store(p_accept + rank * per_rank + node, tl.where(there, accept, 0.0))
        if there:
            lower += scale
            total = tl.zeros((TILE,), dtype=WIDE)
            for start in range(0, V, TILE):
                o = start + tl.arange(0, TILE)
                rest = upper * law_at(p, p_stat, o, o < V, P_LOG, WIDE) - lower * law_at(
                    q, q_stat, o, o < V, Q_LOG, WIDE
                )
                total += tl.where(rest <= 0, 0.0, rest)
            mass = tl.sum(total, 0)
            room = 1 - a + mass
            room = tl.where(room < TINY, TINY, room)
            a, upper, lower = mass / room, upper / room, lower / room
    tl.store(p_state + node, a)
    tl.store(p_state + per_rank + node, upper)
    tl.store(p_state + 2 * per_rank + node, lower)


@triton.jit(do_not_specialize=["p_rows", "q_rows", "nodes", "rank", "per_rank"])
def reject_span_kernel(
    p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows,
    p_child, p_state, p_part, nodes, rank, per_rank,
    V: tl.constexpr, P_LOG: tl.constexpr, P_PICKED: tl.constexpr, Q_LOG: tl.constexpr, Q_PICKED: tl.constexpr,
    WIDE: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Sum the mass in a span that remains after rejecting the children of a rank."""
    node, span = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    b, m = node // nodes, node % nodes
    p, p_stat = law_row(p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, b, m, P_LOG, P_PICKED)
    q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, m, Q_LOG, Q_PICKED)
    upper = tl.load(p_state + per_rank + node)
    lower = tl.load(p_state + 2 * per_rank + node) + tl.load(p_child + (rank * 4 + 3) * per_rank + node).to(WIDE)
    total = tl.zeros((TILE,), dtype=WIDE)
    for start in range(0, SPAN, TILE):
        o = span * SPAN + start + tl.arange(0, TILE)
        rest = upper * law_at(p, p_stat, o, o < V, P_LOG, WIDE) - lower * law_at(q, q_stat, o, o < V, Q_LOG, WIDE)
        total += tl.where(rest <= 0, 0.0, rest)
    tl.store(p_part + node * tl.num_programs(1) + span, tl.sum(total, 0))


@triton.jit(do_not_specialize=["spans", "rank", "per_rank"])
def reject_step_kernel(
    p_child, p_there, p_part, p_accept, p_state, spans, rank, per_rank,
    WIDE: tl.constexpr, TINY: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Compute the weights of the children of a rank, and every node's scalars after their rejection."""
    node = tl.cast(tl.program_id(0), tl.int64)
    a, upper = tl.load(p_state + node), tl.load(p_state + per_rank + node)
    lower = tl.load(p_state + 2 * per_rank + node)
    o_child = (rank * 4) * per_rank + node
    px, qx = tl.load(p_child + o_child).to(WIDE), tl.load(p_child + o_child + per_rank).to(WIDE)
    share = tl.load(p_child + o_child + 2 * per_rank).to(WIDE)
    there = tl.load(p_there + rank * per_rank + node) != 0
    accept = (upper * px - lower * qx) / share
    accept = tl.where(accept < 0, 0.0, tl.where(accept > 1, 1.0, accept))
    tl.store(p_accept + rank * per_rank + node, tl.where(there, accept, 0.0))
    span = tl.arange(0, SPANS)
    mass = tl.sum(tl.load(p_part + node * spans + span, mask=span < spans, other=0.0), 0)
    room = 1 - a + mass
    room = tl.where(room < TINY, TINY, room)
    lower_next = (lower + tl.load(p_child + o_child + 3 * per_rank).to(WIDE)) / room
    tl.store(p_state + node, tl.where(there, mass / room, a))
    tl.store(p_state + per_rank + node, tl.where(there, upper / room, upper))
    tl.store(p_state + 2 * per_rank + node, tl.where(there, lower_next, lower))


def launch_reject_siblings(
    p: Tensor | LogLaw, q: Tensor | LogLaw, weight: Tensor, child: Sequence[Tensor], drawn: Sequence[Tensor] | None
) -> tuple[list[Tensor], Tensor]:
    of_p, (p_log, p_picked) = law_arguments(p)
    of_q, (q_log, q_picked) = law_arguments(q)
    batch, nodes, size = p.shape
    ranks, exists = len(child), _exists([values[0] for values in child], drawn, nodes)
    accept = torch.empty(ranks, batch, nodes, dtype=p.dtype, device=p.device)
    packed, per_rank, sums = _packed(child, nodes), batch * nodes, wide(p.dtype)
    laws = {
        "V": size,
        "P_LOG": p_log,
        "P_PICKED": p_picked,
        "Q_LOG": q_log,
        "Q_PICKED": q_picked,
        "TILE": tile_of(size),
    }
    if size <= SPAN:
        state = torch.empty(3, batch, nodes, dtype=p.dtype, device=p.device)
        launch(
            reject_kernel, (per_rank,), *of_p, *of_q, weight.contiguous(), packed, exists, accept, state,
            nodes, ranks, per_rank, WIDE=sums, TINY=TINY, **laws,
        )  # fmt: skip
    else:
        state = torch.stack((weight, weight, torch.zeros_like(weight))).to(p.dtype)
        spans = triton.cdiv(size, SPAN)
        part = torch.empty(per_rank, spans, dtype=p.dtype, device=p.device)
        for rank in range(ranks):
            launch(
                reject_span_kernel, (per_rank, spans), *of_p, *of_q, packed, state, part, nodes, rank, per_rank,
                WIDE=sums, SPAN=SPAN, **laws,
            )  # fmt: skip
            launch(
                reject_step_kernel, (per_rank,), packed, exists, part, accept, state, spans, rank, per_rank,
                WIDE=sums, TINY=TINY, SPANS=tile_of(spans, 1 << 16),
            )  # fmt: skip
    return [accept[rank, :, : values.shape[2]] for rank, values in enumerate(child)], state


def _packed(ranks: Sequence[Tensor], nodes: int) -> Tensor:
    """Stack ranks [..., B, n] to [ranks, ..., B, M], padded with 1 for missing children."""
    pad = torch.nn.functional.pad
    return torch.stack([pad(x, (0, nodes - x.shape[-1]), value=1) for x in ranks])


def _exists(ranks: Sequence[Tensor], drawn: Sequence[Tensor] | None, nodes: int) -> Tensor:
    """Return bool [ranks, B, M], whether a node has a child of this rank."""
    flags = [torch.ones_like(x, dtype=torch.bool) for x in ranks] if drawn is None else drawn
    pad = torch.nn.functional.pad
    return torch.stack([pad(x, (0, nodes - x.shape[-1]), value=False) for x in flags])
