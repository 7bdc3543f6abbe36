"""Attention biases of a drafted tree by the kind of layer: one ancestor mask, and integer positions for windows and chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.layers.plan import Layer, Plan
from mmspec.core.pool import SlotPool

# names under which decoders ask for a mask beside their layers' types
_RECURRENT = ("linear_attention", "conv", "mlp", "moe")


def masks(
    plan: Plan, pool: SlotPool, ancestor: Tensor, depth: Tensor, deepest: int, dtype: torch.dtype
) -> Tensor | dict[str, Tensor | None] | None:
    """What a pass over a draft is given as its `attention_mask`; None where nothing is hidden from its single nodes.

    ancestor: bool [R, N, N].   depth: int64 [R, N], at most `deepest`.
    A bias [R, 1, N, S] where all layers see the same, else one by layer type, None for layers without attention.
    A slot is seen when it is committed or an ancestor's, and lies in the query's window (fewer than `width` tokens back) or
    chunk (tokens of a row counted from its first); the tokens of a row are its slots without padding, then depths.
    """
    idle = plan.hides_nothing(pool.width + deepest + 1)
    if ancestor.shape[-1] == 1 and pool.uniform and pool.hidden is None and idle and not plan.stateful:
        return None
    full = pool.bias(ancestor, dtype)
    if idle and not plan.mixed:
        return full
    return handed(plan, full, [full if idle else narrowed(full, pool, depth, layer) for layer in plan.narrow])


def handed(plan: Plan, full: Tensor, narrow: list[Tensor]) -> Tensor | dict[str, Tensor | None]:
    """Biases in the form a decoder takes them. full: of layers that see all; narrow: of those in `plan.narrow`."""
    own = dict(zip(((layer.chunked, layer.width) for layer in plan.narrow), narrow, strict=True))
    if not plan.mixed:
        return narrow[0] if narrow else full
    found: dict[str, Tensor | None] = {name: None for name in _RECURRENT}
    found["full_attention"] = full
    for name, layer in zip(plan.types, plan.layers, strict=False):
        if name not in _RECURRENT:
            found[name] = own.get((layer.chunked, layer.width), full)
        if name == "hybrid_sliding":
            found["sliding_attention"] = found[name]
    return found


def narrowed(bias: Tensor, pool: SlotPool, depth: Tensor, layer: Layer) -> Tensor:
    """The bias [R, 1, N, S] with what lies outside a layer's window or chunk hidden too, [B, 1, N, S]."""
    length = pool.length[:, None]
    query = length + depth  # [B, N]
    token = torch.arange(bias.shape[-1], device=bias.device).repeat(query.shape[0], 1)
    # a node's slot is not its place
    token.scatter_(1, length + torch.arange(query.shape[1], device=bias.device), query)
    if layer.chunked:
        start = 0 if pool.hidden is None else pool.hidden.sum(-1)[:, None]
        query, token = (query - start) // layer.width, (token - start) // layer.width
        outside = query[:, :, None] != token[:, None, :]
    else:
        outside = query[:, :, None] - token[:, None, :] >= layer.width
    low = torch.finfo(bias.dtype).min
    return bias.masked_fill(outside[:, None], low)
