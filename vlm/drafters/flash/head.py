"""FLASH's semi-autoregressive head: an attention block, then an expansion into k features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.drafting.layer import apply_rotary, rotary, write_keys_values
from mmspec.kernels.small_linear import small_linear


@dataclass(frozen=True, slots=True)
class SarConfig:
    """The sizes of the head.

    Attributes:
        inner: The width inside the expansion.
        groups: The groups of keys and values.
        dim: The width of a head.
        offsets: The features that a slot predicts.
        residual: Whether the slot's input is added to the attention output, and the sum to every feature. The published
            head has no residual.

    Raises:
        ValueError: A size is not positive, or the width of a head is odd.
    """

    width: int
    inner: int
    heads: int
    groups: int
    dim: int
    offsets: int
    rope_theta: float = 10000.0
    residual: bool = False

    def __post_init__(self) -> None:
        if min(self.width, self.inner, self.heads, self.groups, self.dim, self.offsets) < 1 or self.dim % 2:
            raise ValueError(f"expected positive sizes and an even size of every head, got {self}; change them")


class SarHead(nn.Module):
    """Attention of every head over every group of keys, then Linear, SiLU, Linear to `offsets` features per slot.

    Each (head, group) pair has its own softmax, and the groups' outputs are summed per head. In grouped-query
    attention, by contrast, a head reads a single group. All projections have biases. There is no norm, no feed-forward
    part and, unless the config enables it, no residual. The module holds weights only; keys and values of the groups go
    to the request's cache.
    """

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
        """Return rotated queries and keys, and values.

        Args:
            attend: float [B, n, H].
            rotary: float [B or 1, n, 2, dim], rows of `rotary()` at the positions.
            last: The number of last slots that have queries; None for all.

        Returns:
            Queries [B, n, heads, dim], keys and values [B, groups, n, dim].
        """
        number, groups, dim = self.config.heads, self.config.groups, self.config.dim
        qkv = small_linear(attend, self.qkv.weight, self.qkv.bias).unflatten(-1, (number + 2 * groups, dim))
        qk = apply_rotary(qkv[:, :, : number + groups], rotary)
        query = qk[:, :, :number] if last is None else qk[:, -last:, :number]
        return query, qk[:, :, number:].transpose(1, 2), qkv[:, :, number + groups :].transpose(1, 2)

    def remember(self, attend: Tensor, rotary: Tensor, cache: SlotCache) -> None:
        """Write keys and values of new slots whose outputs are not needed; arguments as in `heads`."""
        write_keys_values(self.qkv, (self.config.heads, self.config.groups, self.config.dim), attend, rotary, cache)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
        """Return the attention output [B, n, heads, dim] of queries of that shape.

        Args:
            q: float [B, n, heads, dim].
            k: float [B, groups, slots, dim].
            v: float [B, groups, slots, dim].
            bias: [B or 1, 1, n, slots], additive or bool.
            causal: Whether slot i sees the slots up to i only.
        """
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
        """Return the block's output [B, n, H] of n new slots, and write their keys and values to `cache`.

        Args:
            attend: float [B, n, H].
            carry: float [B, n, H], the residual.
            rotary: float [B or 1, n, 2, dim].
            cache: The cache of the request.
            bias: float [B or 1, 1, n, slots], additive. Without a bias, a single query attends all slots up to the
                newest, and several queries attend causally over an empty cache.
            last: The number of last slots that are returned; None for all.
        """
        q, k, v = self.heads(attend, rotary, last)
        keys, values = cache.write(0, k, v)
        attended = self.attention(q, keys, values, bias, bias is None and q.shape[1] > 1)
        return self.finish(attended, carry[:, -q.shape[1] :])
