"""ViSpec's vision adaptor: a few learned queries that read a picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.core.drafting.layer import LayerConfig
from mmspec.vlm.drafters.absorbed_attention import absorbed


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
