"""A layer whose block rows attend to context that is projected from the target's states, and to each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_normed, turn
from mmspec.vlm.drafters.context_config import ALL, ContextConfig


class ContextLayer(DraftLayer):
    """A Qwen3 layer. Context and block share the projections of keys and values; only block rows pass the input norm."""

    def __init__(self, config: LayerConfig):
        super().__init__(config)
        eps = config.rms_norm_eps
        self.input_norm = nn.RMSNorm(config.hidden_size, eps=eps)
        self.q_norm, self.k_norm = nn.RMSNorm(config.dim, eps=eps), nn.RMSNorm(config.dim, eps=eps)

    def heads(self, attend: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `DraftLayer.heads`; queries and keys are normed by head before they turn."""
        number, groups, dim = self.config.num_attention_heads, self.config.groups, self.config.dim
        qkv = F.linear(attend, self.qkv.weight, self.qkv.bias).unflatten(-1, (number + 2 * groups, dim))
        query = turn(rms_normed(self.q_norm, qkv[:, :, :number]), rotary).transpose(1, 2)
        key = turn(rms_normed(self.k_norm, qkv[:, :, number : number + groups]), rotary).transpose(1, 2)
        return query, key, qkv[:, :, number + groups :].transpose(1, 2)

    def context(self, states: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, groups, n, dim] of context states [B, n, H].   rotary: [B or 1, n, 2, dim]."""
        number, groups, dim = self.config.num_attention_heads, self.config.groups, self.config.dim
        bias = None if self.qkv.bias is None else self.qkv.bias[number * dim :]
        kv = F.linear(states, self.qkv.weight[number * dim :], bias).unflatten(-1, (2 * groups, dim))
        key = turn(rms_normed(self.k_norm, kv[:, :, :groups]), rotary).transpose(1, 2)
        return key, kv[:, :, groups:].transpose(1, 2)

    def attended(self, normed: Tensor, rotary: Tensor, cache: SlotCache, index: int, bias: Tensor | None) -> Tensor:
        """What attention adds to rows [B, n, H], normed, that stand behind the context in `cache`."""
        query, key, value = self.heads(normed, rotary)
        keys, values = cache.write(index, key, value)
        return self.projected(self.attention(query, keys, values, bias))

    def projected(self, attended: Tensor) -> Tensor:
        """[B, n, H] of attended values [B, heads, n, dim]."""
        return F.linear(attended.transpose(1, 2).flatten(2), self.out.weight)

    def mixed(self, normed: Tensor) -> Tensor:
        """What the MLP adds to rows [B, n, H], normed."""
        gate, up = F.linear(normed, self.gate_up.weight).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down.weight)

    def forward(self, rows: Tensor, rotary: Tensor, cache: SlotCache, index: int, bias: Tensor | None) -> Tensor:
        """The layer's output of block rows [B, n, H], whose keys and values go to `cache` as those of layer `index`.

        bias: additive [B or 1, 1, n, slots], see `biases`.
        """
        rows = rows + self.attended(rms_normed(self.input_norm, rows), rotary, cache, index, bias)
        return rows + self.mixed(rms_normed(self.norm, rows))


def biases(config: ContextConfig, cache: SlotCache, count: int, dtype: torch.dtype) -> list[Tensor | None]:
    """Per layer, the attention bias of `count` block rows behind each row's committed slots; None where they see all.

    A slot's number is its position: context states stand in the order of their tokens.
    """
    made: dict[tuple[int, bool], Tensor | None] = {}
    for kind in zip(config.reach, config.causal, strict=True):
        if kind not in made:
            made[kind] = _bias(cache, count, *kind, config.reach_from_root, dtype)
    return [made[kind] for kind in zip(config.reach, config.causal, strict=True)]


def _bias(cache: SlotCache, count: int, reach: int, causal: bool, from_root: bool, dtype: torch.dtype) -> Tensor | None:
    if cache.uniform and not causal and (reach == ALL or cache.width + count - 1 <= reach):
        return None
    seen = torch.ones(1, count, count, dtype=torch.bool, device=cache.length.device)
    bias = cache.bias(seen.tril() if causal else seen, dtype)
    if reach == ALL:
        return bias
    slot = torch.arange(bias.shape[-1], device=bias.device)
    row = cache.length[:, None, None] + torch.arange(count, device=bias.device)[:, None]
    outside = within_reach(row, slot, cache.length[:, None, None], reach, from_root).logical_not()
    return bias.masked_fill(outside[:, None], torch.finfo(dtype).min)


def within_reach(row: Tensor, key: Tensor, root: Tensor, reach: int, from_root: bool) -> Tensor:
    """Whether a window shows a block row at position `row` a key at `key`, of a block whose root stands at `root`.

    The window counts from the root for what lies before it and hides nothing of the block, or from each row both ways.
    """
    return root - key <= reach if from_root else (row - key).abs() <= reach
