"""The additive attention bias of a drafted tree over a slot cache."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_bias(ancestor: Tensor, length: Tensor, width: int, uniform: bool, hidden: Tensor | None, dtype: torch.dtype):
    """Bias [B or 1, 1, N, width + M] to add to attention scores: 0 where a query sees a slot, the dtype's minimum elsewhere.

    ancestor: bool [R, N, M], True where query node i sees drafted node j.
    length: int64 [B], committed slots per row; drafted node j of row b lies in slot length[b] + j.
    width: max of `length`; uniform: every row has it (known on the host, so no sync).
    hidden: bool [B, P] of committed slots never to be seen (left padding), or None.
    """
    low = torch.finfo(dtype).min
    queries, nodes = ancestor.shape[-2:]
    zero = torch.zeros((), dtype=dtype, device=length.device)
    block = torch.where(ancestor, zero, low)
    if uniform and hidden is None:
        return torch.nn.functional.pad(block, (width, 0))[:, None]
    if uniform:
        rows = max(block.shape[0], 1 if hidden is None else hidden.shape[0])
        bias = block.new_zeros(rows, queries, width + nodes)
        bias[:, :, width:] = block
    else:
        slot = torch.arange(width + nodes, device=length.device)
        bias = torch.where(slot < length[:, None], zero, low)[:, None, :].repeat(1, queries, 1)
        at = (length[:, None] + torch.arange(nodes, device=length.device))[:, None, :].expand(-1, queries, -1)
        bias.scatter_(2, at, block.expand(length.shape[0], -1, -1))
    if hidden is not None:
        bias[:, :, : hidden.shape[1]].masked_fill_(hidden[:, None, :], low)
    return bias[:, None]
