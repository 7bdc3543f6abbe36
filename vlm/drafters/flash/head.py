"""FLASH's semi-autoregressive head: an attention block, then an expansion into k features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import apply_rotary, rotary, write_keys_values
from mmspec.core.round.cache import SlotCache
from mmspec.io.validation import Size, check_fields
from mmspec.kernels.small_linear import small_linear


@dataclass(frozen=True, slots=True)
class SarConfig:
    width: Size
    inner: Size  # inside the expansion
    heads: Size
    groups: Size  # of keys and values
    dim: Size  # the width of a head, even
    offsets: Size  # the features that a slot predicts
    rope_theta: float = 10000.0
    residual: bool = False  # if the input is added to the attention output, the sum to every feature; not as published

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dim % 2:
            raise ValueError(f"dim: expected an even number, got {self.dim}; change it")


class SarHead(nn.Module):
    """Attention of every head over every group of keys, then Linear, SiLU, Linear to `offsets` features per slot. Each
    (head, group) pair has its own softmax, and the groups' outputs are summed per head; in grouped-query attention, a
    head reads a single group. All projections have biases. There is no norm, no feed-forward part and, unless the
    config enables it, no residual. Keys and values of the groups go to the request's cache."""

    def __init__(self, config: SarConfig):
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.width, (config.heads + 2 * config.groups) * config.dim)
        self.out = nn.Linear(config.heads * config.dim, config.width)
        self.up = nn.Linear(config.width, config.inner)
        self.down = nn.Linear(config.inner, config.offsets * config.width)
        if config.residual:  # every offset starts as the attention output of its slot
            nn.init.zeros_(self.down.weight)
            nn.init.zeros_(self.down.bias)

    def rotary(self, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return cos and signed sin of positions 0..count-1, [count, 2, dim], for `heads`."""
        return rotary(count, self.config.dim, self.config.rope_theta, device, dtype)

    def heads(self, attend: Tensor, rotary: Tensor, last: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [B, n, heads, dim] of the `last` slots, None for all, and rotated keys and values [B,
        groups, n, dim] of states [B, n, H]. `rotary`, [B or 1, n, 2, dim], are rows of `rotary()` at the positions."""
        number, groups, dim = self.config.heads, self.config.groups, self.config.dim
        qkv = small_linear(attend, self.qkv.weight, self.qkv.bias).unflatten(-1, (number + 2 * groups, dim))
        qk = apply_rotary(qkv[:, :, : number + groups], rotary)
        query = qk[:, :, :number] if last is None else qk[:, -last:, :number]
        return query, qk[:, :, number:].transpose(1, 2), qkv[:, :, number + groups :].transpose(1, 2)

    def remember(self, attend: Tensor, rotary: Tensor, cache: SlotCache) -> None:
        """Write keys and values of new slots whose outputs are not needed; arguments as in `heads`."""
        write_keys_values(self.qkv, (self.config.heads, self.config.groups, self.config.dim), attend, rotary, cache)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
        """Return the attention output of queries [B, n, heads, dim]; keys and values are [B, groups, slots, dim].
        `bias`, [B or 1, 1, n, slots], is additive or bool. With `causal`, slot i sees the slots up to i only."""
        groups = k.shape[1]
        if q.shape[1] == 1:  # heads of a single slot act as slots that see the same keys: no copies, one call
            return F.scaled_dot_product_attention(q.expand(-1, groups, -1, -1), k, v, attn_mask=bias).sum(1)[:, None]
        pairs = q.transpose(1, 2).repeat(1, groups, 1, 1)
        out = F.scaled_dot_product_attention(pairs, k, v, attn_mask=bias, is_causal=causal, enable_gqa=True)
        return out.unflatten(1, (groups, -1)).sum(1).transpose(1, 2)

    def finish(self, attended: Tensor, carry: Tensor) -> Tensor:
        """Return the block's output [..., H] from attended values [..., heads, dim] and the slots' inputs [..., H]."""
        out = small_linear(attended.flatten(-2), self.out.weight, self.out.bias)
        return out + carry if self.config.residual else out

    def expansion(self, seen: Tensor, count: int) -> Tensor:
        """Return the first `count` features of slots, [..., count * H], from the block's output [..., H]."""
        rows = count * self.config.width
        inner = F.silu(small_linear(seen, self.up.weight, self.up.bias))
        features = small_linear(inner, self.down.weight[:rows], self.down.bias[:rows])
        return features + seen.repeat(*[1] * (seen.dim() - 1), count) if self.config.residual else features

    def forward(
        self,
        attend: Tensor,
        carry: Tensor,
        rotary: Tensor,
        cache: SlotCache,
        bias: Tensor | None,
        last: int | None = None,
    ) -> Tensor:
        """Return the output of the `last` slots (None for all) of new states and residuals, [B, n, H] each, and write
        keys and values to `cache`. `rotary` is [B or 1, n, 2, dim], `bias` additive, [B or 1, 1, n, slots]. Without it,
        a single query attends all slots up to the newest, several queries attend causally over an empty cache."""
        q, k, v = self.heads(attend, rotary, last)
        keys, values = cache.write(0, k, v)
        attended = self.attention(q, keys, values, bias, bias is None and q.shape[1] > 1)
        return self.finish(attended, carry[:, -q.shape[1] :])
