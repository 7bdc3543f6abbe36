"""The forms in which models hand over queries and keys whose heads are grouped, made one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Attention = Callable[..., Tensor]


def one_to_one(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """All with a head of keys for each of the queries': kernels differ with and without groups.

    count: queries of a row. Where that is one, a model may hand over the queries of a group as if they were as many tokens.
    mask: a bias, [B or 1, 1 or H, count, S].
    """
    batch, heads, rows, size = query.shape
    if rows != count:
        query = query.reshape(batch, heads * rows, count, size)
        if mask is not None and mask.shape[1] > 1:
            mask = mask.reshape(mask.shape[0], heads * rows, count, -1)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
    return query, key, value, mask
