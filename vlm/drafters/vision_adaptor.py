"""ViSpec's vision adaptor: a few learned queries that read a picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.core.drafting.layer import LayerConfig


class VisionAdaptor(nn.Module):
    """One bidirectional attention of learned queries over the projected embeddings of a picture.

    No norm, no feed-forward, no residual, no positions. Keys and values have a bias where the layer's have one, the output
    never has. Every query head has keys of its own, whatever the layer's grouping.

    q: float [num_q, heads, head_dim], at first normal with deviation head_dim ** -0.5.
    """

    def __init__(self, layer: LayerConfig, num_q: int):
        super().__init__()
        heads, dim, width = layer.num_attention_heads, layer.dim, layer.hidden_size
        self.q = nn.Parameter(torch.randn(num_q, heads, dim) * dim**-0.5)
        self.k_proj = nn.Linear(width, heads * dim, bias=layer.qkv_bias)
        self.v_proj = nn.Linear(width, heads * dim, bias=layer.qkv_bias)
        self.o_proj = nn.Linear(heads * dim, width, bias=False)

    def forward(self, pictures: Tensor, there: Tensor | None = None) -> Tensor:
        """What the queries read of each picture, float [K, num_q, H].

        pictures: float [K, N, H].   there: bool [K, N], rows that belong to the picture, at least one; None for all.
        """
        found = absorbed(self.q, pictures, pictures, self.k_proj.weight, self.v_proj, there)
        return self.o_proj(found)


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
