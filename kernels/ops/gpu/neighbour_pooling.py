"""Pooled weights of image codes, a program per drafted code."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.gpu.launch import launch, tile_of


@triton.jit(do_not_specialize=["nodes", "codes"])
def borrowed_kernel(
    p_law, s_batch, s_row, p_token, p_table, s_table, p_budget, p_out, nodes, codes,
    WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
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
        borrowed_kernel, (token.numel(),), law, *law.stride()[:2], token.contiguous(), table, table.stride(0),
        budget.contiguous(), out, token.shape[1], len(table), WIDTH=table.shape[1], TILE=tile_of(table.shape[1], 1 << 16),
    )  # fmt: skip
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
):  # fmt: skip
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
        window_kernel, (token.numel(),), p, *p.stride()[:2], token.contiguous(), member, mass, token.shape[1],
        below, above, V=p.shape[2], TILE=tile_of(p.shape[2]),
    )  # fmt: skip
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
        pooled_kernel, (token.numel(),), law, *law.stride()[:2], token.contiguous(), member.contiguous(),
        inside.contiguous(), out, token.shape[1], member.shape[2], TILE=tile_of(member.shape[2], 1 << 16),
    )  # fmt: skip
    return out
