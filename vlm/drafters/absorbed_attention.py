"""Attention of a few queries over many rows, with the projections of the rows absorbed into the queries."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def absorbed(query: Tensor, read: Tensor, taken: Tensor, key: Tensor, value: nn.Linear, there: Tensor | None) -> Tensor:
    """Attention of a few queries over many rows, [K, num_q, heads * dim], without projecting the rows.

    q (W x) is (W^T q) x, and a mean of projected rows is the projected mean: so the work is that of the queries. A bias of
    the keys moves all scores of a query alike and is left out.
    query: float [num_q, heads, dim].   read, taken: float [K, N, H], what keys and values are projected from.
    key: weight [heads * dim, H].   there: bool [K, N] or None.
    """
    number, heads, dim = query.shape
    asked = torch.einsum("qhd,hdw->qhw", query, key.unflatten(0, (heads, dim))).flatten(0, 1)
    scores = (read @ asked.T).transpose(1, 2).float() * dim**-0.5  # [K, num_q * heads, N]
    if there is not None:
        scores = scores.masked_fill(~there[:, None], -torch.inf)
    means = (scores.softmax(-1).to(taken.dtype) @ taken).unflatten(1, (number, heads))
    found = torch.einsum("kqhw,hdw->kqhd", means, value.weight.unflatten(0, (heads, dim))).flatten(2)
    return found if value.bias is None else found + value.bias
