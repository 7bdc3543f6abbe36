"""Blocks of a vision transformer under the published names."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.imagegen.continuous.token_cache import KeysValues, own


class Attention(nn.Module):
    """Full attention, queries, keys and values in one projection."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, there: Tensor | None, over: Callable[[Tensor, Tensor], KeysValues]) -> Tensor:
        rows, count, width = x.shape
        q, k, v = self.qkv(x).view(rows, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, *over(k, v), attn_mask=there)
        return self.proj(out.transpose(1, 2).reshape(rows, count, width))


class Mlp(nn.Module):
    """Two layers with a GELU between."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Both halves with the norm before them."""

    def __init__(self, width: int, heads: int, ratio: float, eps: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, int(width * ratio))

    def forward(
        self, x: Tensor, there: Tensor | None = None, over: Callable[[Tensor, Tensor], KeysValues] = own
    ) -> Tensor:
        """x: [R, N, width].   there: bool [R, 1, 1, N], the keys that count; None for all.   over: from the keys and values
        [R, heads, N, size] of x to those that its attention goes over."""
        x = x + self.attn(self.norm1(x), there, over)
        return x + self.mlp(self.norm2(x))
