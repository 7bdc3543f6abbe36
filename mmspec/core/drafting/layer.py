from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.rotary import apply_rotary, axes_of, check_scaling, rotary
from mmspec.core.drafting.unroll import Fuse, unroll
from mmspec.core.round.pool import SlotPool
from mmspec.kernels.small_linear import small_linear
from mmspec.kernels.tree_attention import attention_part, merge_attention

Slots = tuple[Tensor, Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class LayerConfig:
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int = 0  # 0 for as many as queries have
    head_dim: int = 0  # 0 for hidden_size / heads
    read_size: int = 0  # the width of the input of queries, keys and values, 0 for hidden_size
    qkv_bias: bool = False
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    rope_scaling: dict[str, Any] = field(default_factory=dict)  # see `check_scaling`; empty for plain positions
    out_bias: bool = False
    mlp_bias: bool = False
    norms_input: bool = False  # the layer norms the input of its attention itself
    qk_norm: bool = False  # queries and keys are normed by head, as in Qwen3
    window: int = 0  # a query at position p sees the keys at p - window + 1 to p; 0 for all up to p

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        if min(self.hidden_size, self.intermediate_size, heads) < 1 or self.dim % 2:
            raise ValueError(f"expected positive sizes and an even size of every head, got {self}")
        if not self.head_dim and self.hidden_size % heads or heads % self.groups:
            raise ValueError(f"expected hidden_size a multiple of heads, and heads of key-value heads, got {self}")
        if self.window < 0:
            raise ValueError(f"window: expected a number of positions, or 0 for all, got {self.window}")
        check_scaling(self.rope_scaling)
        if (section := self.rope_scaling.get("mrope_section")) is not None and sum(section) != self.dim // 2:
            raise ValueError(
                f"mrope_section: expected numbers with the sum {self.dim // 2}, half of a head's size, got "
                f"{section}; give the config the file was made with"
            )

    @classmethod
    def of(cls, config: object, **others: Any) -> Self:
        names = {entry.name for entry in fields(cls)}
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)}, **others)

    @property
    def dim(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def groups(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads


class DraftLayer(nn.Module):
    """The attention and SwiGLU of a Llama or Qwen3 layer, with few kernel launches. Without `norms_input` the caller
    norms its input. Rotary positions are half-split; any table of the layout of `rotary` fits. Its window is part of
    the given bias, see `unroll` for training."""

    def __init__(self, config: LayerConfig):
        super().__init__()
        self.config = config
        width, inner, dim = config.hidden_size, config.intermediate_size, config.dim
        rows = (config.num_attention_heads + 2 * config.groups) * dim
        self.qkv = nn.Linear(config.read_size or width, rows, bias=config.qkv_bias)
        self.out = nn.Linear(config.num_attention_heads * dim, width, bias=config.out_bias)
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.gate_up = nn.Linear(width, 2 * inner, bias=config.mlp_bias)
        self.down = nn.Linear(inner, width, bias=config.mlp_bias)
        sizes = {"input_norm": config.read_size or width, "q_norm": dim, "k_norm": dim}
        present = {"input_norm": config.norms_input, "q_norm": config.qk_norm, "k_norm": config.qk_norm}
        for name, size in sizes.items():
            setattr(self, name, nn.RMSNorm(size, eps=config.rms_norm_eps) if present[name] else None)

    def rotary(self, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return cos and signed sin of positions 0..count-1, [count, 2, head_dim]."""
        return rotary(count, self.config.dim, self.config.rope_theta, device, dtype, self.config.rope_scaling)

    def heads(self, attend: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [B, heads, n, dim], rotated keys and values [B, groups, n, dim] of `attend` [B, n,
        read_size]; `rotary` [B or 1, n, 2, dim] holds rows of `rotary()` at their positions."""
        batch, count = attend.shape[:2]
        number, groups, dim = self.config.num_attention_heads, self.config.groups, self.config.dim
        if self.input_norm is not None:
            attend = rms_norm(self.input_norm, attend)
        qkv = small_linear(attend, self.qkv.weight, self.qkv.bias).view(batch, count, number + 2 * groups, dim)
        qk = qkv[:, :, : number + groups]
        if self.q_norm is not None:
            qk = torch.cat([rms_norm(self.q_norm, qk[:, :, :number]), rms_norm(self.k_norm, qk[:, :, number:])], 2)
        qk = apply_rotary(qk, rotary).transpose(1, 2)
        return qk[:, :number], qk[:, number:], qkv[:, :, number + groups :].transpose(1, 2)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
        """Return [B, heads, n, dim] from queries [B, heads, n, dim] and keys and values [B, groups, slots, dim]."""
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=grouped)

    def attention_in_parts(self, q: Tensor, first: Slots, second: Slots) -> Tensor:
        """`attention` over two disjoint sets of slots, each given as keys, values and bias."""
        return merge_attention(*attention_part(q, *first), *attention_part(q, *second))

    def finish(self, carry: Tensor, attended: Tensor) -> Tensor:
        # a step is a few small products and a module call costs as much as a product, so functions use the weights
        return self.with_mlp(carry + small_linear(attended.transpose(1, 2).flatten(2), self.out.weight, self.out.bias))

    def with_mlp(self, u: Tensor) -> Tensor:
        normed = rms_norm(self.norm, u)
        gate, up = small_linear(normed, self.gate_up.weight, self.gate_up.bias).chunk(2, -1)
        return u + small_linear(F.silu(gate) * up, self.down.weight, self.down.bias)

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotPool, bias: Tensor | None) -> Tensor:
        """Return outputs [B, n, H] of n new slots, whose keys and values go to `cache`; `attend` [B, n, read_size] and
        `rotary` as in `heads`, `carry` [B, n, H] the residual. Without the additive bias [B or 1, 1, n, slots] a single
        slot attends all before it, and several attend causally over an empty cache."""
        q, k, v = self.heads(attend, rotary)
        keys, values = cache.write(0, k, v)
        return self.finish(carry, self.attention(q, keys, values, bias, bias is None and attend.shape[1] > 1))

    def remember(self, attend: Tensor, rotary: Tensor, cache: SlotPool) -> None:
        config = self.config
        if self.input_norm is not None:
            attend = rms_norm(self.input_norm, attend)
        sizes = config.num_attention_heads, config.groups, config.dim
        write_keys_values(self.qkv, sizes, attend, rotary, cache, self.k_norm)

    def rotary_at(self, position: Tensor, dtype: torch.dtype) -> Tensor:
        """Return rows of `rotary()`, [B, n, 2, head_dim], at position int64 [B, n] or, on several axes, [A, B, n]."""
        return self.rows_at(self.rotary(int(position.max()) + 1, position.device, dtype), position)

    def rows_at(self, table: Tensor, position: Tensor) -> Tensor:
        rows = table[position]
        if position.dim() < 3:
            return rows
        axis = axes_of(self.config.dim, self.config.rope_scaling, rows.device)
        return rows.gather(0, axis.expand(1, *rows.shape[1:]))[0]

    def unroll(
        self,
        attend: Tensor,
        carry: Tensor,
        rotary: Tensor,
        first: int,
        depths: int,
        fuse: Fuse,
        hidden: Tensor | None = None,
    ) -> list[Tensor]:
        """Return outputs [B, R - first, H] of the slots from `first` at each depth, for a drafter of this layer alone."""
        return unroll([self], attend, carry, rotary, first, depths, fuse, hidden)


def rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Stay in the dtype of x, which autocast may have changed."""
    return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps)


def write_keys_values(
    qkv: nn.Linear,
    sizes: tuple[int, int, int],
    attend: Tensor,
    rotary: Tensor,
    cache: SlotPool,
    k_norm: nn.RMSNorm | None = None,
) -> None:
    """Write rotated keys and values to a cache's first layer. `sizes`: heads, groups and dim; `attend` float [B, n, A]."""
    heads, groups, dim = sizes
    bias = None if qkv.bias is None else qkv.bias[heads * dim :]
    kv = small_linear(attend, qkv.weight[heads * dim :], bias).unflatten(-1, (2 * groups, dim))
    key = kv[:, :, :groups] if k_norm is None else rms_norm(k_norm, kv[:, :, :groups])
    cache.write(0, apply_rotary(key, rotary).transpose(1, 2), kv[:, :, groups:].transpose(1, 2))
