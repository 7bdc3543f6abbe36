"""Pictures in fewer rows: a few learned queries read them, and the pooled rows take their last slots."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmspec.vlm.drafters.base.prompt_slots import PictureSpans


def absorbed_attention(
    query: Tensor, read: Tensor, taken: Tensor, key: Tensor, value: nn.Linear, there: Tensor | None
) -> Tensor:
    """Attention of a few queries over many rows, [K, num_q, heads * dim], without projecting the rows.

    q (W x) is (W^T q) x, and a mean of projected rows is the projected mean: so the work is that of the queries. A bias of
    the keys moves all scores of a query alike and is left out.
    query: float [num_q, heads, dim].   read, taken: float [K, N, H], what keys and values are projected from.
    key: weight [heads * dim, H].   there: bool [K, N] or None.
    """
    number, heads, dim = query.shape
    folded = torch.einsum("qhd,hdw->qhw", query, key.unflatten(0, (heads, dim))).flatten(0, 1)
    scores = (read @ folded.T).transpose(1, 2).float() * dim**-0.5  # [K, num_q * heads, N]
    if there is not None:
        scores = scores.masked_fill(~there[:, None], -torch.inf)
    means = (scores.softmax(-1).to(taken.dtype) @ taken).unflatten(1, (number, heads))
    rows = torch.einsum("kqhw,hdw->kqhd", means, value.weight.unflatten(0, (heads, dim))).flatten(2)
    return rows if value.bias is None else rows + value.bias


def pool_pictures(
    pool: Callable[[Tensor, Tensor], Tensor],
    count: int,
    rows: Tensor,
    keep: Tensor,
    states: Tensor,
    spans: PictureSpans,
) -> Tensor:
    """`rows` [B, S, H] with pictures longer than `count` pooled into their last `count` slots; their other slots leave `keep`.

    pool: from states [K, N, H] of pictures and the places they fill, bool [K, N], rows [K, count, H].   keep: bool [B, S],
    changed in place.   states: [B, S, H], what is pooled.
    """
    longer = (spans.length > count)[:, None]
    pooled = pool(spans.gather(states), spans.there)
    row, slot, used = spans.slots(spans.length, spans.longest)
    gone = used & longer
    keep[row.expand_as(slot)[gone], slot[gone]] = False
    row, slot, used = spans.slots(count, count)
    used = used & longer
    at = row.expand_as(slot)[used], slot[used]
    keep[at] = True
    return rows.index_put(at, pooled[used].to(rows.dtype))


class LatentPool(nn.Module):
    """C rows softmax(A h^T) h of a picture's states h: no scaling, no projections, one head.

    latents: A, float [C, H], scaled so that scores of states of unit variance have unit variance.
    """

    def __init__(self, count: int, width: int):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(count, width) * width**-0.5)

    def forward(self, states: Tensor, there: Tensor) -> Tensor:
        """Rows [K, C, H] of K pictures.   states: float [K, N, H].   there: bool [K, N], places a picture fills."""
        scores = (self.latents @ states.transpose(1, 2)).float().masked_fill(~there[:, None], -torch.inf)
        return scores.softmax(-1).to(states.dtype) @ states
