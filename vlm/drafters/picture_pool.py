"""Pictures in fewer rows: each is pooled into its last few slots, the others are left out."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mmspec.vlm.drafters.prompt_view import Spans


def pooled_pictures(
    pool: Callable[[Tensor, Tensor], Tensor], count: int, rows: Tensor, keep: Tensor, states: Tensor, spans: Spans
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
