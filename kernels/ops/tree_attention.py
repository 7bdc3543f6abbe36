"""Attention of a drafted tree over a slot cache: all committed slots, and of the new ones a node's own ancestors.

The tree is 64 bits a node, bit j for "node j is on the path root..i", in place of a mask as wide as the cache. The kernel
reads the prefix in splits without any mask, the tree as one more split under the bits, and merges them by their
log-sum-exp, which is exact. Up to 64 nodes; the reference builds the mask (`tree_bias`) and takes any number. Sums in float32;
splits are merged in order, so equal lengths give equal bits. NaN in a slot that is seen gives NaN in that row's output and in
no other's; every node sees itself. Strides: any, but 1 along the head's axis.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmspec.kernels.dispatch import BOOL, INDEX, expect, expect_dense, expect_rows, on_kernels
from mmspec.kernels.draft_tree import tree_bias

_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
BITS = 64


def ancestor_bits(ancestor: Tensor) -> Tensor:
    """int64 [R, N], bit j of node i set where j is on the path root..i. ancestor: bool [R, N, N], N <= 64."""
    expect("ancestor", ancestor, BOOL, None, ancestor.shape[-1], None)
    if ancestor.shape[-1] > BITS:
        raise ValueError(f"ancestor: expected at most {BITS} nodes, got {ancestor.shape[-1]}")
    place = torch.arange(ancestor.shape[-1], device=ancestor.device)
    return (ancestor.long() << place).sum(-1)  # the sign is bit 63


def tree_attention(
    query: Tensor, keys: Tensor, values: Tensor, length: Tensor, width: int, ancestor: Tensor,
    hidden: Tensor | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """What each node attends to, [B, H, N, d] in the query's dtype.

    query: float [B, H, N, d].   keys, values: [B, H', S, d], H' dividing H; node j of row b lies in slot length[b] + j.
    length: int64 [B], committed slots; width: their maximum, known on the host, at most S - N.
    ancestor: bool [R, N, N], R in {1, B}.   hidden: bool [B, P] of committed slots never to be seen, or None.
    scale: of the scores, 1 / sqrt(d) for None.
    """
    expect("query", query, _DTYPES, None, None, None, None)
    batch, heads, nodes, size = query.shape
    for name, pool in (("keys", keys), ("values", values)):
        expect(name, pool, frozenset({query.dtype}), batch, None, None, size)
        expect_dense(name, pool)
    expect("length", length, INDEX, batch)
    expect_rows("ancestor", ancestor, batch, nodes, nodes)
    if heads % keys.shape[1] or keys.shape[:3] != values.shape[:3]:
        raise ValueError(f"keys: expected heads that divide {heads} and slots of values {list(values.shape)}, got "
                         f"{list(keys.shape)}")  # fmt: skip
    if not 0 <= width <= keys.shape[2] - nodes:
        raise ValueError(f"width: expected 0 to {keys.shape[2] - nodes} (slots less nodes), got {width}")
    scale = 1 / math.sqrt(size) if scale is None else scale
    if on_kernels(query) and nodes <= BITS:
        from mmspec.kernels.gpu.tree_attention import launch_tree_attention

        return launch_tree_attention(query, keys, values, length, width, ancestor_bits(ancestor), hidden, scale)
    return tree_attention_reference(query, keys, values, length, width, ancestor, hidden, scale)


def tree_attention_reference(
    query: Tensor, keys: Tensor, values: Tensor, length: Tensor, width: int, ancestor: Tensor, hidden: Tensor | None,
    scale: float,
) -> Tensor:  # fmt: skip
    slots = width + query.shape[2]
    bias = tree_bias(ancestor, length, width, False, hidden, query.dtype)
    return torch.nn.functional.scaled_dot_product_attention(
        query, keys[:, :, :slots], values[:, :, :slots], bias, scale=scale, enable_gqa=query.shape[1] != keys.shape[1]
    )
