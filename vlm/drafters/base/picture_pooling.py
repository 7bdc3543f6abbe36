"""Picture pooling: a few learned queries read a picture, and the pooled rows take its last slots."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmspec.vlm.drafters.base.prompt_slots import PictureSpans


def absorbed_attention(
    query: Tensor, key_rows: Tensor, value_rows: Tensor, key: Tensor, value: nn.Linear, there: Tensor | None
) -> Tensor:
    """Return the attention [K, num_q, heads * dim] of queries [num_q, heads, dim] over rows [K, N, H], without
    projecting the rows. q (W x) equals (W^T q) x, and a mean of projected rows is the projected mean. A bias of the
    keys shifts all scores of a query alike and is left out. `key` is a weight [heads * dim, H]; `there`, bool [K, N],
    are the rows to attend, None for all."""
    number, heads, dim = query.shape
    folded = torch.einsum("qhd,hdw->qhw", query, key.unflatten(0, (heads, dim))).flatten(0, 1)
    scores = (key_rows @ folded.T).transpose(1, 2).float() * dim**-0.5  # [K, num_q * heads, N]
    if there is not None:
        scores = scores.masked_fill(~there[:, None], -torch.inf)
    means = (scores.softmax(-1).to(value_rows.dtype) @ value_rows).unflatten(1, (number, heads))
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
    """Return rows [B, S, H] with pictures longer than `count` pooled into their last `count` slots; `keep`, bool [B,
    S], is updated in place. `pool` maps states [K, N, H] and the places of a picture, bool [K, N], to [K, count, H]."""
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
    """Pools a picture's states h into C rows softmax(A h^T) h, without scaling or projections, with one head.
    `latents`, [C, H], is A, scaled so that states of unit variance give scores of unit variance."""

    def __init__(self, count: int, width: int):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(count, width) * width**-0.5)

    def forward(self, states: Tensor, there: Tensor) -> Tensor:
        """Return rows [K, C, H] of states [K, N, H]; `there`, bool [K, N], are the places that a picture fills."""
        scores = (self.latents @ states.transpose(1, 2)).float().masked_fill(~there[:, None], -torch.inf)
        return scores.softmax(-1).to(states.dtype) @ states
