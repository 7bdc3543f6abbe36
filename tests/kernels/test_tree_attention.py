"""Attention in parts, merged by the log-sum-exp of their scores, is attention over all slots."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.kernels import tree_attention
from mmspec.kernels.tree_attention import attention_part, merge_attention

B, H, G, N, D = 2, 4, 2, 3, 8


def tensors(slots: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A query, keys, values and the bias of slots of which every query misses a few."""
    rng = torch.Generator().manual_seed(slots)
    query, keys, values = (
        torch.randn(B, n, m, D, generator=rng).to(dtype) for n, m in ((H, N), (G, slots), (G, slots))
    )
    seen = torch.rand(B, 1, N, slots, generator=rng) < 0.7
    seen[..., -1] = True
    return query, keys, values, torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)


def error(slots: int, cut: int, is_biased: bool = True) -> float:
    """The largest difference between attention over all slots, and over the first `cut` merged with the rest."""
    query, keys, values, bias = tensors(slots)
    parts = []
    for first, last in ((0, cut), (cut, slots)):
        part = bias[..., first:last] if is_biased else None
        parts += attention_part(query, keys[:, :, first:last], values[:, :, first:last], part)
    whole = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, bias if is_biased else None, enable_gqa=True
    )
    return float((merge_attention(*parts) - whole).abs().max())


@pytest.mark.parametrize(("slots", "cut"), [(1, 0), (9, 1), (63, 30), (130, 129), (40, 0)])
@pytest.mark.parametrize("is_biased", (True, False))
def test_merged_parts_are_softmax_over_the_union(slots: int, cut: int, is_biased: bool) -> None:
    assert error(slots, cut, is_biased) < 1e-6


def test_a_part_of_which_nothing_is_seen_weighs_nothing() -> None:
    query, keys, values, bias = tensors(12)
    hidden = attention_part(
        query, keys, torch.full_like(values, 7.0), torch.full_like(bias, torch.finfo(bias.dtype).min)
    )
    seen = attention_part(query, keys, values, bias)
    assert torch.equal(merge_attention(*hidden, *seen), seen[0])


def test_halves_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention.torch, "sigmoid", lambda x: torch.full_like(x, 0.5))
    assert error(63, 30) > 1e-2


def test_the_sums_of_half_precision_are_wide() -> None:
    query, keys, values, bias = tensors(33, torch.bfloat16)
    attended, lse = attention_part(query, keys, values, bias)
    assert attended.dtype == torch.bfloat16 and lse.dtype == torch.float32
    wide = attention_part(query.float(), keys.float(), values.float(), None if bias is None else bias.float())
    torch.testing.assert_close(attended.float(), wide[0], atol=0.05, rtol=0.05)
