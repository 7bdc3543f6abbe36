from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from mmspec.core.layers.strict_ops import (
    BLOCK,
    BLOCK_ON_CPU,
    PROMPT_BLOCK,
    attend_draft,
    attend_prompt,
    in_blocks,
    in_vectors,
    row_groups,
)
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.tree import Tree
from mmspec.kernels.small_linear import small_linear

_ATTENTION = F.scaled_dot_product_attention
_CURVED = (F.silu, F.gelu, F.softplus, F.sigmoid, torch.sigmoid, Tensor.sigmoid, torch.rsqrt, Tensor.rsqrt)


class StrictMode(TorchFunctionMode):
    """Passes of this thread give every value the same bits as a pass over it alone, with products of `rows` rows.
    Products of two activations stay unchanged, so models that mix values in them (eager attention) differ in bits."""

    def __init__(self, rows: int, attention: Callable[..., Tensor] | None = None):
        super().__init__()
        self.stands: dict[Callable, Callable] = {
            F.linear: partial(_linear, rows),
            torch.addmm: partial(_addmm, rows),
            **{op: partial(_bmm, rows) for op in (torch.bmm, Tensor.bmm)},
            **{op: partial(_grouped, rows) for op in (torch._grouped_mm, F.grouped_mm)},
            **{op: partial(_matmul, rows, op) for op in (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm)},
            **{op: partial(_curve, op) for op in _CURVED},
        }
        if attention is not None:
            self.stands[_ATTENTION] = attention

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        return self.stands.get(func, func)(*args, **(kwargs or {}))


def over_prompt() -> StrictMode:
    """A row's bits do not depend on other rows."""
    return StrictMode(PROMPT_BLOCK, partial(attend_prompt, _ATTENTION))


def over_draft(pool: SlotPool, tree: Tree, batch: int) -> StrictMode:
    width = pool.width + tree.nodes
    attend = partial(attend_draft, row_groups(pool, tree, batch), tree.nodes, width, _ATTENTION)
    return StrictMode(rows_on(pool.length.device), attend)


def single_steps(device: torch.device) -> StrictMode:
    return StrictMode(rows_on(device))


def rows_on(device: torch.device) -> int:
    return BLOCK_ON_CPU if device.type == "cpu" else BLOCK


def _linear(rows: int, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return in_blocks(lambda block: small_linear(block, weight, bias), x, rows)


def _addmm(rows: int, bias: Tensor, x: Tensor, weight: Tensor, **scales: float) -> Tensor:
    return in_blocks(lambda block: torch.addmm(bias, block, weight, **scales), x, rows)


def _matmul(rows: int, product: Callable, x: Tensor, other: Tensor) -> Tensor:
    if other.dim() != 2 or x.dim() < 2:
        return product(x, other)
    return in_blocks(lambda block: product(block, other), x, rows)


def _bmm(rows: int, x: Tensor, other: Tensor) -> Tensor:
    count = x.shape[1]
    missing = -count % rows
    x = torch.cat((x, x.new_zeros(x.shape[0], missing, x.shape[2])), 1) if missing else x
    return torch.cat([torch.bmm(block, other) for block in x.split(rows, 1)], 1)[:, :count].contiguous()


def _grouped(rows: int, x: Tensor, weight: Tensor, offs: Tensor, bias: None = None, out_dtype: None = None) -> Tensor:
    """Multiply rows [S, K], sorted by expert with ends `offs` [E], by weights [E, K, N]."""
    out, start = x.new_empty(x.shape[0], weight.shape[-1]), 0
    for expert, end in enumerate(offs.tolist()):
        if end > start:
            out[start:end] = in_blocks(lambda block, own=weight[expert]: block @ own, x[start:end], rows)
        start = end
    return out


def _curve(function: Callable, x: Tensor, *args: object, **kwargs: object) -> Tensor:
    return in_vectors(lambda piece: function(piece, *args, **kwargs), x)
