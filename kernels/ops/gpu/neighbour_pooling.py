"""Pooled weights of image codes, a program per drafted code."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import launch, law_arguments, law_at, law_row, tile_of, wide
from mmspec.kernels.log_law import TINY, LogLaw


@triton.jit(do_not_specialize=["nodes", "codes"])
def borrowed_kernel(
    p_law,
    s_batch,
    s_row,
    p_token,
    p_table,
    s_table,
    p_budget,
    p_out,
    nodes,
    codes,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    at = tl.cast(tl.program_id(0), tl.int64)
    law = p_law + at // nodes * s_batch + at % nodes * s_row
    token = tl.load(p_token + at)
    o = tl.arange(0, TILE)
    inside = tl.where(token < codes, o, WIDTH) < WIDTH  # special tokens have no neighbours
    near = tl.load(p_table + tl.minimum(token, codes - 1) * s_table + o, mask=inside, other=0)
    mass = tl.load(law + near, mask=inside, other=0.0)
    total = tl.cumsum(mass, 0)
    total = tl.where(inside & (total <= tl.load(p_budget + at)), total, 0.0)
    tl.store(p_out + at, tl.max(total, 0))


def launch_borrowed(law: Tensor, token: Tensor, table: Tensor, budget: Tensor) -> Tensor:
    out = torch.empty(token.shape, dtype=law.dtype, device=law.device)
    launch(
        borrowed_kernel,
        (token.numel(),),
        law,
        *law.stride()[:2],
        token.contiguous(),
        table,
        table.stride(0),
        budget.contiguous(),
        out,
        token.shape[1],
        len(table),
        WIDTH=table.shape[1],
        TILE=tile_of(table.shape[1], 1 << 16),
    )
    return out


@triton.jit(do_not_specialize=["p_rows", "q_rows", "nodes", "codes", "constant", "factor"])
def borrowing_kernel(
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
    p_at,
    p_token,
    p_exact,
    p_table,
    s_table,
    p_live,
    p_out,
    nodes,
    codes,
    constant,
    factor,
    V: tl.constexpr,
    P_LOG: tl.constexpr,
    P_PICKED: tl.constexpr,
    Q_LOG: tl.constexpr,
    Q_PICKED: tl.constexpr,
    SHARED: tl.constexpr,
    RAGGED: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    TINY: tl.constexpr,
    TILE: tl.constexpr,
):
    at = tl.cast(tl.program_id(0), tl.int64)
    b, parent = at // nodes, tl.maximum(at % nodes - 1, 0)
    token = tl.minimum(tl.maximum(tl.load(p_token + at), 0), V - 1)
    p, p_stat = law_row(p_p, p_stats, p_row, p_s_batch, p_s_row, p_rows, b, parent, P_LOG, P_PICKED)
    o = tl.arange(0, TILE)
    inside = tl.where(token < codes, o, WIDTH) < WIDTH  # special tokens have no neighbours
    near = tl.load(p_table + tl.minimum(token, codes - 1) * s_table + o, mask=inside, other=0)
    mass = law_at(p, p_stat, token, token >= 0, P_LOG, WIDE)
    total = tl.cumsum(law_at(p, p_stat, near, inside, P_LOG, WIDE), 0)
    more = tl.max(tl.where(inside & (total <= constant + factor * mass), total, 0.0), 0)
    raised = mass + more
    if SHARED:
        origin = tl.maximum(tl.load(p_at + parent), 0)
        q, q_stat = law_row(q_q, q_stats, q_row, q_s_batch, q_s_row, q_rows, b, origin, Q_LOG, Q_PICKED)
        share = law_at(q, q_stat, token, token >= 0, Q_LOG, WIDE)
        raised = tl.where(share == 0, 0.0, raised / tl.where(share < TINY, TINY, share))
    raised = tl.where(more > 0, tl.where(raised > 1, 1.0, raised), tl.load(p_exact + at))
    if RAGGED:
        raised = tl.where(tl.load(p_live + at) != 0, raised, 0.0)
    tl.store(p_out + at, tl.where(at % nodes == 0, 0.0, raised))


def launch_borrowing(
    p: Tensor | LogLaw,
    q: Tensor | LogLaw | None,
    row: Tensor,
    token: Tensor,
    exact: Tensor,
    table: Tensor,
    budget: tuple[float, float],
    live: Tensor | None,
) -> Tensor:
    of_p, (p_log, p_picked) = law_arguments(p)
    of_q, (q_log, q_picked) = law_arguments(p if q is None else q)
    out, exact = torch.empty(token.shape, dtype=exact.dtype, device=exact.device), exact.contiguous()
    launch(
        borrowing_kernel,
        (token.numel(),),
        *of_p,
        *of_q,
        row.contiguous(),
        token.contiguous(),
        exact,
        table,
        table.stride(0),
        exact if live is None else live.contiguous(),
        out,
        token.shape[1],
        len(table),
        *budget,
        V=p.shape[2],
        P_LOG=p_log,
        P_PICKED=p_picked,
        Q_LOG=q_log,
        Q_PICKED=q_picked,
        SHARED=q is not None,
        RAGGED=live is not None,
        WIDTH=table.shape[1],
        WIDE=wide(exact.dtype),
        TINY=TINY,
        TILE=tile_of(table.shape[1], 1 << 16),
    )
    return out


@triton.jit
def next_below(law, last, here, V: tl.constexpr, TILE: tl.constexpr):
    """Return the likeliest code after (last, here) in the ranking: less likely, or equally likely with a higher id."""
    best, code = tl.full((), float("-inf"), last.dtype), here * 0 + V  # a product with an infinite `last` is NaN
    for start in range(0, V, TILE):
        o = start + tl.arange(0, TILE)
        p = tl.load(law + o, mask=o < V, other=-1.0)
        after = ((p < last) | ((p == last) & (o > here))) & (p > 0)
        high = tl.max(tl.where(after, p, float("-inf")), 0)
        first = tl.min(tl.where(after & (p == high), o, V), 0)
        code = tl.where(high > best, first, code)
        best = tl.maximum(best, high)
    return best, code


@triton.jit
def next_above(law, last, here, V: tl.constexpr, TILE: tl.constexpr):
    """Return the least likely code before (last, here) in the ranking: likelier, or equally likely with a lower id."""
    best, code = tl.full((), float("inf"), last.dtype), here * 0 - 1
    for start in range(0, V, TILE):
        o = start + tl.arange(0, TILE)
        p = tl.load(law + o, mask=o < V, other=-1.0)
        ahead = (p > last) | ((p == last) & (o < here) & (o < V))
        low = tl.min(tl.where(ahead, p, float("inf")), 0)
        final = tl.max(tl.where(ahead & (p == low), o, -1), 0)
        code = tl.where(low < best, final, tl.where(low == best, tl.maximum(code, final), code))
        best = tl.minimum(best, low)
    return best, code


@triton.jit(do_not_specialize=["nodes", "below", "above"])
def window_kernel(
    p_law, s_batch, s_row, p_token, p_member, p_mass, nodes, below, above, V: tl.constexpr, TILE: tl.constexpr
):
    at = tl.cast(tl.program_id(0), tl.int64)
    law = p_law + at // nodes * s_batch + at % nodes * s_row
    token = tl.load(p_token + at)
    out = at * (below + above)
    last, here = tl.load(law + token), token.to(tl.int32)
    for i in range(below):
        last, here = next_below(law, last, here, V, TILE)
        tl.store(p_mass + out + i, last)
        tl.store(p_member + out + i, tl.minimum(here, V - 1).to(tl.int64))
    last, here = tl.load(law + token), token.to(tl.int32)
    for i in range(above):
        last, here = next_above(law, last, here, V, TILE)
        tl.store(p_mass + out + below + i, last)
        tl.store(p_member + out + below + i, tl.maximum(here, 0).to(tl.int64))


def launch_window(p: Tensor, token: Tensor, below: int, above: int) -> tuple[Tensor, Tensor]:
    shape = (*token.shape, below + above)
    member = torch.empty(shape, dtype=torch.int64, device=p.device)
    mass = torch.empty(shape, dtype=p.dtype, device=p.device)
    launch(
        window_kernel,
        (token.numel(),),
        p,
        *p.stride()[:2],
        token.contiguous(),
        member,
        mass,
        token.shape[1],
        below,
        above,
        V=p.shape[2],
        TILE=tile_of(p.shape[2]),
    )
    return member, mass


@triton.jit(do_not_specialize=["nodes", "width"])
def pooled_kernel(p_law, s_batch, s_row, p_token, p_member, p_inside, p_out, nodes, width, TILE: tl.constexpr):
    at = tl.cast(tl.program_id(0), tl.int64)
    law = p_law + at // nodes * s_batch + at % nodes * s_row
    o = tl.arange(0, TILE)
    inside = tl.load(p_inside + at * width + o, mask=o < width, other=0) != 0
    member = tl.load(p_member + at * width + o, mask=inside, other=0)
    more = tl.sum(tl.load(law + member, mask=inside, other=0.0), 0)
    tl.store(p_out + at, tl.load(law + tl.load(p_token + at)) + more)


def launch_pooled(law: Tensor, token: Tensor, member: Tensor, inside: Tensor) -> Tensor:
    out = torch.empty(token.shape, dtype=law.dtype, device=law.device)
    launch(
        pooled_kernel,
        (token.numel(),),
        law,
        *law.stride()[:2],
        token.contiguous(),
        member.contiguous(),
        inside.contiguous(),
        out,
        token.shape[1],
        member.shape[2],
        TILE=tile_of(member.shape[2], 1 << 16),
    )
    return out
