"""Layers without own keys and values, and a head that scores the tokens of a few clusters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import rms_norm
from mmspec.kernels.small_linear import small_linear


class QueryLayer(nn.Module):
    """A Gemma 4 layer that attends to external keys and values; queries are normed and rotated, scores not scaled."""

    def __init__(self, width: int, inner: int, heads: int, dim: int, eps: float):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.q_proj = nn.Linear(width, heads * dim, bias=False)
        self.q_norm = nn.RMSNorm(dim, eps=eps)
        self.o_proj = nn.Linear(heads * dim, width, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(width, eps=eps) for _ in range(2))
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = (nn.RMSNorm(width, eps=eps) for _ in range(2))
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, x: Tensor, turning: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Return the outputs of rows [B, n, width] that do not see each other. Keys and values are [B, groups, slots,
        dim], `turning`, [B, 1, 2, dim], is cos and sin of their position, `bias`, [B, 1, 1, slots], additive, None to
        see all."""
        query = small_linear(rms_norm(self.input_layernorm, x), self.q_proj.weight).unflatten(
            -1, (self.heads, self.dim)
        )
        query = _rotated(rms_norm(self.q_norm, query), turning).transpose(1, 2)
        if bias is not None:
            bias = bias.expand(-1, -1, x.shape[1], -1)
        seen = F.scaled_dot_product_attention(query, keys, values, bias, scale=1.0, enable_gqa=True)
        added = small_linear(seen.transpose(1, 2).flatten(2), self.o_proj.weight)
        x = x + rms_norm(self.post_attention_layernorm, added)
        read = rms_norm(self.pre_feedforward_layernorm, x)
        gate, up = small_linear(read, self.gate_proj.weight), small_linear(read, self.up_proj.weight)
        added = small_linear(F.gelu(gate, approximate="tanh") * up, self.down_proj.weight)
        return (x + rms_norm(self.post_feedforward_layernorm, added)) * self.layer_scalar


def rotary_at(position: Tensor, dim: int, theta: float, share: float, dtype: torch.dtype) -> Tensor:
    """Return cos and sin [B, 1, 2, dim] of positions int64 [B], half-split. The `share` of a head's pairs is rotated,
    with frequencies spaced as if all pairs were ("proportional")."""
    pairs = int(share * dim // 2)
    frequency = theta ** (-torch.arange(0, 2 * pairs, 2, device=position.device, dtype=torch.float32) / dim)
    angle = position[:, None].float() * F.pad(frequency, (0, dim // 2 - pairs))
    angle = torch.cat([angle, angle], -1)
    return torch.stack([angle.cos(), angle.sin()], 1)[:, None].to(dtype)


def _rotated(heads: Tensor, turning: Tensor) -> Tensor:
    cos, sin = turning[:, :, :1], turning[:, :, 1:]
    low, high = heads.chunk(2, -1)
    return heads * cos + torch.cat([-high, low], -1) * sin


class ClusteredHead(nn.Module):
    """Scores the tokens of the `top` clusters nearest to a row. All other tokens get the least of these scores less 1,
    which is part of the distribution. `token_ordering`, int64 [vocab], has the tokens cluster by cluster."""

    def __init__(self, width: int, vocab: int, clusters: int, top: int):
        super().__init__()
        self.top = top
        self.centroids = nn.Linear(width, clusters, bias=False)
        self.register_buffer("token_ordering", torch.arange(vocab))

    def forward(self, rows: Tensor, table: Tensor) -> Tensor:
        """Return the scores [B, n, vocab] of rows [B, n, width]; `table` [vocab, width] has a row per token."""
        nearest = self.centroids(rows).topk(self.top, -1).indices
        token = self.token_ordering.view(self.centroids.out_features, -1)[nearest].flatten(-2)  # [B, n, top * size]
        scores = (table[token] @ rows[..., None])[..., 0]
        floor = scores.amin(-1, keepdim=True) - 1
        return floor.expand(*rows.shape[:-1], len(table)).scatter(-1, token, scores)
