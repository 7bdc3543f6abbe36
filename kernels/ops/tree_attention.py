"""Attention of a drafted tree over a slot cache: all committed slots, and among the new slots a node's own ancestors.

The tree is 64 bits per node, bit j for "node j is on the path root..i"; every node sees itself. The kernel reads the
prefix in splits without a mask, the tree as a further split under the bits, and merges them by their log-sum-exp, which
is exact. It takes up to 64 nodes; the reference builds the mask (`tree_bias`) and takes any number. Sums run in
float32, and splits are merged in order. NaN in a visible slot gives NaN in that row's output only. Strides: any, but 1
along the head's axis."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmspec.kernels.dispatch import BOOL, INDEX, expect, expect_dense, expect_rows, on_kernels
from mmspec.kernels.draft_tree import tree_bias

_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
BITS = 64


def ancestor_bits(ancestor: Tensor) -> Tensor:
    """Return int64 [R, N], with bit j of node i set if j is on the path root..i. `ancestor` is bool [R, N, N], N <= 64."""
    expect("ancestor", ancestor, BOOL, None, ancestor.shape[-1], None)
    if ancestor.shape[-1] > BITS:
        raise ValueError(f"ancestor: expected at most {BITS} nodes, got {ancestor.shape[-1]}")
    place = torch.arange(ancestor.shape[-1], device=ancestor.device)
    return (ancestor.long() << place).sum(-1)  # the sign is bit 63


def tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    width: int,
    ancestor: Tensor,
    hidden: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return the attended values of each node, [B, H, N, d] like the query. Keys and values are [B, H', S, d], H'
    dividing H; node j of row b is in slot length[b] + j. `width`, on the host, is the maximum of `length` int64 [B], at
    most S - N. `ancestor` is bool [R, N, N]; `hidden` bool [B, P] marks committed slots that are never visible. The
    scale None is 1 / sqrt(d)."""
    expect("query", query, _DTYPES, None, None, None, None)
    batch, heads, nodes, size = query.shape
    for name, pool in (("keys", keys), ("values", values)):
        expect(name, pool, frozenset({query.dtype}), batch, None, None, size)
        expect_dense(name, pool)
    expect("length", length, INDEX, batch)
    expect_rows("ancestor", ancestor, batch, nodes, nodes)
    if heads % keys.shape[1] or keys.shape[:3] != values.shape[:3]:
        raise ValueError(
            f"keys: expected heads that divide {heads} and slots of values {list(values.shape)}, got {list(keys.shape)}"
        )
    if not 0 <= width <= keys.shape[2] - nodes:
        raise ValueError(f"width: expected 0 to {keys.shape[2] - nodes} (slots less nodes), got {width}")
    scale = 1 / math.sqrt(size) if scale is None else scale
    if on_kernels(query) and nodes <= BITS:
        from mmspec.kernels.gpu.tree_attention import launch_tree_attention

        return launch_tree_attention(query, keys, values, length, width, ancestor_bits(ancestor), hidden, scale)
    return tree_attention_reference(query, keys, values, length, width, ancestor, hidden, scale)


def tree_attention_reference(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    width: int,
    ancestor: Tensor,
    hidden: Tensor | None,
    scale: float,
) -> Tensor:
    slots = width + query.shape[2]
    bias = tree_bias(ancestor, length, width, False, hidden, query.dtype)
    return torch.nn.functional.scaled_dot_product_attention(
        query, keys[:, :, :slots], values[:, :, :slots], bias, scale=scale, enable_gqa=query.shape[1] != keys.shape[1]
    )


def attention_part(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attend to some of the slots: return the values [B, H, N, d] and the log-sum-exp of the scores, float32 [B, H, N],
    for `merge_attention`. Keys [B, H', S, d] may have S = 0; the bias [B or 1, 1, N or 1, S] is additive, None where
    all are seen."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = (x if groups == 1 else x.repeat_interleave(groups, 1) for x in (keys, values))
    scores = query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])
    scores = (scores if bias is None else scores + bias).float()
    return scores.softmax(-1).to(values.dtype) @ values, scores.logsumexp(-1)


def merge_attention(first: Tensor, first_lse: Tensor, second: Tensor, second_lse: Tensor) -> Tensor:
    """Return attention over the union of two disjoint sets of slots: w first + (1 - w) second, w = exp(first_lse) /
    (exp(first_lse) + exp(second_lse)). The lse are float32 [...], -Inf for an empty first set; the second is not empty.
    """
    weight = torch.sigmoid(first_lse - second_lse).to(first.dtype)[..., None]
    return torch.lerp(second, first, weight)
