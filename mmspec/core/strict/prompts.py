"""Attention where a prompt is read: each row of a padded batch as if it were alone."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.strict.heads import Attention, one_to_one


def attend_prompt(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Stands for `scaled_dot_product_attention`.   Padding is what does not see itself; it stands before or behind a row's
    tokens, and gets zeros."""
    count = query.shape[2]
    query, key, value, mask = one_to_one(query, key, value, attn_mask, count)
    if mask is None or query.shape[0] == 1 or count != key.shape[2]:
        return attention(query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale)
    out = query.new_zeros(*query.shape[:3], value.shape[-1])
    sees = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    past = torch.ones(count, count, dtype=torch.bool, device=mask.device).tril()
    for row in range(query.shape[0]):
        at = min(row, mask.shape[0] - 1)
        there = sees[at, 0].diagonal().nonzero()[:, 0]
        if not len(there):
            continue
        one, span = slice(row, row + 1), slice(int(there[0]), int(there[-1]) + 1)
        # alone, a row whose tokens see all before them has no mask
        alone = mask.shape[1] == 1 and torch.equal(sees[at, 0, span, span], past[span, span])
        how = {"is_causal": True} if alone else {"attn_mask": mask[at : at + 1, :, span, span]}
        out[one, :, span] = attention(query[one, :, span], key[one, :, span], value[one, :, span], scale=scale, **how)
    return out
