"""The one decoder layer a feature drafter runs, as few launches as it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.pool import SlotPool

Fuse = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Sizes of the layer.

    hidden_size: of its output.   read_size: of what queries, keys and values are projected from, 0 for hidden_size.
    num_key_value_heads: 0 for as many as queries have.   head_dim: 0 for hidden_size / heads.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    read_size: int = 0
    qkv_bias: bool = False
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        if min(self.hidden_size, self.intermediate_size, heads) < 1 or self.dim % 2:
            raise ValueError(f"expected positive sizes and an even size of every head, got {self}")
        if not self.head_dim and self.hidden_size % heads or heads % self.groups:
            raise ValueError(f"expected hidden_size a multiple of heads, and heads of key-value heads, got {self}")

    @classmethod
    def of(cls, config: object, **others: int) -> Self:
        """The layer of a drafter: the sizes its config has under these names, and `others`."""
        names = {one.name for one in fields(cls)}
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)}, **others)

    @property
    def dim(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def groups(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads


class DraftLayer(nn.Module):
    """Attention and SwiGLU of a Llama layer without the first norm: whoever feeds it norms what it should.

    Rotary positions are half-split; `rotary` makes 1-D ones, any other table of the same layout will do. Holds weights only;
    keys and values go to the request's cache.
    """

    def __init__(self, config: LayerConfig):
        super().__init__()
        self.config = config
        width, inner, dim = config.hidden_size, config.intermediate_size, config.dim
        rows = (config.num_attention_heads + 2 * config.groups) * dim
        self.qkv = nn.Linear(config.read_size or width, rows, bias=config.qkv_bias)
        self.out = nn.Linear(config.num_attention_heads * dim, width, bias=False)
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def rotary(self, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """cos and signed sin of positions 0..count-1, [count, 2, head_dim], for `heads`."""
        return rotary(count, self.config.dim, self.config.rope_theta, device, dtype)

    def heads(self, attend: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values: [B, heads, n, dim] and twice [B, groups, n, dim].

        attend: [B, n, read_size].   rotary: rows of `rotary()` at their positions, [B or 1, n, 2, dim].
        """
        batch, count = attend.shape[:2]
        number, groups, dim = self.config.num_attention_heads, self.config.groups, self.config.dim
        qkv = F.linear(attend, self.qkv.weight, self.qkv.bias).view(batch, count, number + 2 * groups, dim)
        qk = apply_rotary(qkv[:, :, : number + groups], rotary).transpose(1, 2)
        return qk[:, :number], qk[:, number:], qkv[:, :, number + groups :].transpose(1, 2)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
        """[B, heads, n, dim] from queries [B, heads, n, dim] and keys and values [B, groups, slots, dim]."""
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=grouped)

    def finish(self, carry: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [B, n, H] from the residual and the attended values [B, heads, n, dim]."""
        # a step is a few small products, so functions are called on the weights: a module call costs as much as one
        u = carry + F.linear(attended.transpose(1, 2).flatten(2), self.out.weight)
        normed = rms_norm(self.norm, u)
        gate, up = F.linear(normed, self.gate_up.weight).chunk(2, -1)
        return u + F.linear(F.silu(gate) * up, self.down.weight)

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotPool, bias: Tensor | None) -> Tensor:
        """Outputs [B, n, H] of n new slots, whose keys and values go to `cache`.

        bias: additive [B or 1, 1, n, slots]. Without one, a single slot attends all before it, and more slots attend
        causally over an empty cache.
        """
        q, k, v = self.heads(attend, rotary)
        keys, values = cache.write(0, k, v)
        return self.finish(carry, self.attention(q, keys, values, bias, bias is None and attend.shape[1] > 1))

    def remember(self, attend: Tensor, rotary: Tensor, cache: SlotPool) -> None:
        """Writes keys and values of new slots whose outputs nothing reads; arguments as in `heads`."""
        config = self.config
        write_keys_values(self.qkv, (config.num_attention_heads, config.groups, config.dim), attend, rotary, cache)

    def rotary_at(self, position: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of `rotary()` at position int64 [B, n], [B, n, 2, head_dim]."""
        return self.rotary(int(position.max()) + 1, position.device, dtype)[position]

    def unroll(
        self, attend: Tensor, carry: Tensor, rotary: Tensor, first: int, depths: int, fuse: Fuse,
        hidden: Tensor | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """Outputs [B, R - first, H] of slots first.. of R at each depth, attending as in drafting.

        A slot at depth d reads the drafter's own output of the slot before it at depth d - 1; it attends the true slots
        up to d before it, and its own drafted ancestors in between (training-time test of "EAGLE-3").
        attend, carry: of the true slots, [B, R, ...].   rotary: at their positions, [B or 1, R, 2, dim].
        fuse: from own outputs [B, R - first, H] of the slots before, the pair (attend, carry) of these slots.
        hidden: bool [B, R], slots before `first` that nothing sees.
        """
        query, key, value = self.heads(attend, rotary)
        carry = carry[:, first:]
        place = torch.arange(attend.shape[1], device=key.device)
        repeat = query.shape[1] // key.shape[1]
        query, key, value = query[:, :, first:], _wide(key, repeat), _wide(value, repeat)
        scale = query.shape[-1] ** -0.5
        outputs, drafted = [], []  # drafted: keys and values of depth 1, 2, ... over the slots first..
        for depth in range(depths):
            if depth:
                attend, carry = fuse(F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1])
                query, k, v = self.heads(attend, rotary[:, first:])
                drafted.append((_wide(k, repeat), _wide(v, repeat)))
            hides = place > (place[first:, None] - depth)
            if hidden is not None:
                hides = hides | hidden[:, None, None]
            scores = (query @ key.transpose(-1, -2) * scale).masked_fill(hides, -torch.inf)
            own = [_back(k, depth - 1 - t) for t, (k, _) in enumerate(drafted)]
            diagonal = [(query * k).sum(-1, keepdim=True) * scale for k in own]
            weight = torch.cat([scores, *diagonal], -1).float().softmax(-1).to(value.dtype)
            attended = weight[..., : len(place)] @ value
            for t, (_, v) in enumerate(drafted):
                attended = attended + weight[..., len(place) + t, None] * _back(v, depth - 1 - t)
            outputs.append(self.finish(carry, attended))
        return outputs


def rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """The norm of x in x's own dtype, which autocast may have changed."""
    return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps)


def write_keys_values(
    qkv: nn.Linear, sizes: tuple[int, int, int], attend: Tensor, rotary: Tensor, cache: SlotPool
) -> None:
    """Writes the rotated keys and the values of new slots, without their queries. sizes: heads, groups, dim."""
    heads, groups, dim = sizes
    bias = None if qkv.bias is None else qkv.bias[heads * dim :]
    kv = F.linear(attend, qkv.weight[heads * dim :], bias).unflatten(-1, (2 * groups, dim))
    cache.write(0, apply_rotary(kv[:, :, :groups], rotary).transpose(1, 2), kv[:, :, groups:].transpose(1, 2))


def rotary(count: int, dim: int, theta: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """cos and signed sin of positions 0..count-1, [count, 2, dim]: the sign of the swapped halves is in the table."""
    half = dim // 2
    frequency = theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angle = torch.arange(count, device=device, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1).to(dtype)


def apply_rotary(heads: Tensor, rotary: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout, in heads' dtype. heads: [B, n, heads, dim]; rotary: [B or 1, n, 2, dim], in
    heads' dtype or a wider one, which is then what is computed in.
    """
    cos, sin = rotary[:, :, :1], rotary[:, :, 1:]
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin).to(heads.dtype)


def _wide(x: Tensor, repeat: int) -> Tensor:
    return x if repeat == 1 else x.repeat_interleave(repeat, 1)


def _back(x: Tensor, steps: int) -> Tensor:
    """Row j of the result is row j - steps of x [B, heads, m, dim] (zeros before the start)."""
    return F.pad(x, (0, 0, steps, 0))[:, :, : x.shape[2]]
