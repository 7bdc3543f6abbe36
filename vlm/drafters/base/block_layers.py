"""The sizes of block drafters, and their layer, whose block rows attend to the context and to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig, apply_rotary, rms_norm
from mmspec.core.round.cache import SlotCache
from mmspec.io.validation import Count, Size, check_fields
from mmspec.kernels.small_linear import small_linear

UNLIMITED = -1  # reach of a layer without a window


@dataclass(frozen=True, slots=True)
class BlockDrafterConfig:
    hidden_size: int  # the target's
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int  # the target's
    taps: tuple[int, ...]  # the target's layers whose outputs are read, from 0
    mask_token_id: Count  # the embedding row of a token to draft
    block_size: int = 16  # with the root
    num_hidden_layers: Size = 1
    target_hidden_size: int = 0  # the width of the states that are read, 0 for hidden_size
    num_key_value_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    draft_vocab_size: Count = 0  # the tokens of a reduced vocabulary, 0 for all
    from_root: bool = False  # whether a row predicts the token behind its position, so that the root drafts too
    reach: tuple[int, ...] = ()  # the positions that a row of each layer looks back, -1 for all
    reach_from_root: bool = False  # whether `reach` counts from the root instead of the row
    causal: tuple[bool, ...] = ()  # for each layer, whether a row sees no later row of the block
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float = 0.0  # as in `LogitTransform`, 0 for none
    latents: Count = 0  # the rows that a picture is pooled into, 0 for no pooling
    tied_head: bool = False  # whether a reduced vocabulary has the target's rows, neither trained nor saved
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_scaling: dict[str, Any] = field(default_factory=dict)  # see `check_scaling`

    def __post_init__(self) -> None:
        layers = self.num_hidden_layers
        object.__setattr__(self, "taps", tuple(self.taps))  # a list when read from a file
        object.__setattr__(self, "reach", tuple(self.reach) or (UNLIMITED,) * layers)
        object.__setattr__(self, "causal", tuple(self.causal) or (False,) * layers)
        check_fields(self)
        if not self.taps or min(self.taps) < 0:
            raise ValueError(f"taps: expected at least one layer of the target, got {self.taps}")
        if len(self.reach) != layers or len(self.causal) != layers:
            raise ValueError(
                f"reach, causal: expected a value for each of {layers} layers, got {self.reach} and {self.causal}"
            )
        if min(self.reach) < UNLIMITED:
            raise ValueError(f"reach: expected positions to look back, or {UNLIMITED} for all, got {self.reach}")
        if self.drafted < 1:
            raise ValueError(f"block_size: expected at least one row that drafts a token, got {self.block_size}")
        if self.mask_token_id >= self.vocab_size:
            raise ValueError(
                f"mask_token_id: expected a token below vocab_size {self.vocab_size}, got {self.mask_token_id}"
            )
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(
                f"draft_vocab_size: expected 0 to vocab_size {self.vocab_size}, got {self.draft_vocab_size}"
            )
        self.layer()

    @property
    def drafted(self) -> int:
        return self.block_size if self.from_root else self.block_size - 1

    @property
    def tapped(self) -> int:
        return self.target_hidden_size or self.hidden_size

    def layer(self) -> LayerConfig:
        return LayerConfig.of(self, qkv_bias=self.attention_bias, out_bias=self.attention_bias)


class BlockLayer(DraftLayer):
    """A Qwen3 layer. Context and block share the key and value projections; only block rows pass the input norm."""

    def __init__(self, config: LayerConfig):
        super().__init__(config)
        eps = config.rms_norm_eps
        self.input_norm = nn.RMSNorm(config.hidden_size, eps=eps)
        self.q_norm, self.k_norm = nn.RMSNorm(config.dim, eps=eps), nn.RMSNorm(config.dim, eps=eps)

    def heads(self, attend: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `DraftLayer.heads`; queries and keys are normed per head before they are rotated."""
        number, groups, dim = self.config.num_attention_heads, self.config.groups, self.config.dim
        qkv = small_linear(attend, self.qkv.weight, self.qkv.bias).unflatten(-1, (number + 2 * groups, dim))
        query = apply_rotary(rms_norm(self.q_norm, qkv[:, :, :number]), rotary).transpose(1, 2)
        key = apply_rotary(rms_norm(self.k_norm, qkv[:, :, number : number + groups]), rotary).transpose(1, 2)
        return query, key, qkv[:, :, number + groups :].transpose(1, 2)

    def context(self, states: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, groups, n, dim] of context states [B, n, H]; `rotary` is [B or 1, n, 2, dim]."""
        number, groups, dim = self.config.num_attention_heads, self.config.groups, self.config.dim
        bias = None if self.qkv.bias is None else self.qkv.bias[number * dim :]
        kv = small_linear(states, self.qkv.weight[number * dim :], bias).unflatten(-1, (2 * groups, dim))
        key = apply_rotary(rms_norm(self.k_norm, kv[:, :, :groups]), rotary).transpose(1, 2)
        return key, kv[:, :, groups:].transpose(1, 2)

    def attended(self, normed: Tensor, rotary: Tensor, cache: SlotCache, index: int, bias: Tensor | None) -> Tensor:
        """Return the attention output [B, n, H] of normed rows that stand behind the context in `cache`."""
        query, key, value = self.heads(normed, rotary)
        keys, values = cache.write(index, key, value)
        return self.projected(self.attention(query, keys, values, bias))

    def projected(self, attended: Tensor) -> Tensor:
        """Return the output projection [B, n, H] of attended values [B, heads, n, dim]."""
        return small_linear(attended.transpose(1, 2).flatten(2), self.out.weight, self.out.bias)

    def mixed(self, normed: Tensor) -> Tensor:
        gate, up = small_linear(normed, self.gate_up.weight, self.gate_up.bias).chunk(2, -1)
        return small_linear(F.silu(gate) * up, self.down.weight, self.down.bias)

    def forward(self, rows: Tensor, rotary: Tensor, cache: SlotCache, index: int, bias: Tensor | None) -> Tensor:
        """Return the output of block rows [B, n, H], and write their keys and values to `cache` under the number
        `index`. `rotary` is [B or 1, n, 2, dim]; `bias`, additive [B or 1, 1, n, slots], see `attention_biases`."""
        rows = rows + self.attended(rms_norm(self.input_norm, rows), rotary, cache, index, bias)
        return rows + self.mixed(rms_norm(self.norm, rows))


def attention_biases(
    config: BlockDrafterConfig, cache: SlotCache, count: int, dtype: torch.dtype
) -> list[Tensor | None]:
    """Return, per layer, the attention bias of `count` block rows behind each row's committed slots; None sees all. A
    slot's number is its position, since context states stand in the order of their tokens."""
    biases: dict[tuple[int, bool], Tensor | None] = {}
    for kind in zip(config.reach, config.causal, strict=True):
        if kind not in biases:
            biases[kind] = _attention_bias(cache, count, *kind, config.reach_from_root, dtype)
    return [biases[kind] for kind in zip(config.reach, config.causal, strict=True)]


def _attention_bias(
    cache: SlotCache, count: int, reach: int, causal: bool, from_root: bool, dtype: torch.dtype
) -> Tensor | None:
    if cache.uniform and not causal and (reach == UNLIMITED or cache.width + count - 1 <= reach):
        return None
    seen = torch.ones(1, count, count, dtype=torch.bool, device=cache.length.device)
    bias = cache.bias(seen.tril() if causal else seen, dtype)
    if reach == UNLIMITED:
        return bias
    slot = torch.arange(bias.shape[-1], device=bias.device)
    row = cache.length[:, None, None] + torch.arange(count, device=bias.device)[:, None]
    outside = within_reach(row, slot, cache.length[:, None, None], reach, from_root).logical_not()
    return bias.masked_fill(outside[:, None], torch.finfo(dtype).min)


def within_reach(row: Tensor, key: Tensor, root: Tensor, reach: int, from_root: bool) -> Tensor:
    """Return whether a window shows the keys at positions `key` to block rows at positions `row`. It counts from each
    row to both sides, or with `from_root` from the block's root at `root`, and then hides nothing of the block."""
    return root - key <= reach if from_root else (row - key).abs() <= reach


def taps_of(target_layers: int, layers: int) -> tuple[int, ...]:
    """Return the layers that a drafter of `layers` reads of its target: spread from layer 1 to the last but two."""
    return tuple(dict.fromkeys(spread_taps(target_layers, layers)))


def spread_taps(target_layers: int, layers: int) -> tuple[int, ...]:
    """Return a layer of the target for each of `layers`, as the public code spreads them; small targets repeat some."""
    if layers == 1:
        return (target_layers // 2,)
    last = max(target_layers - 3, 1)
    return tuple(round(1 + i * (last - 1) / (layers - 1)) for i in range(layers))
