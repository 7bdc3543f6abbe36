"""Attention to the keys and values that a target has committed, for drafters that keep none of their own for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_norm
from mmspec.core.drafting.rotary import apply_rotary
from mmspec.core.round.cache import SlotCache
from mmspec.kernels.small_linear import small_linear
from mmspec.vlm.architectures import Parts
from mmspec.vlm.partial_passes import rotary_at


class FrozenKeysLayer(DraftLayer):
    """A decoder layer with a second attention, whose keys and values are the target's; only its queries are its own."""

    def __init__(self, config: LayerConfig):
        super().__init__(config)
        width, heads = config.hidden_size, config.num_attention_heads * config.dim
        self.cross_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.query, self.cross_out = nn.Linear(width, heads, bias=False), nn.Linear(heads, width, bias=False)

    def behind_window(self, carry: Tensor, attended: Tensor) -> Tensor:
        """Return the residual [B, n, H] behind the attention to its own keys."""
        return carry + small_linear(attended.transpose(1, 2).flatten(2), self.out.weight, self.out.bias)

    def queries(self, u: Tensor, rotary: Tensor) -> Tensor:
        """Return the queries [B, heads, n, dim] of residuals [B, n, H], rotated by `rotary` [B, n, 2, dim]."""
        query = small_linear(rms_norm(self.cross_norm, u), self.query.weight).unflatten(-1, (-1, self.config.dim))
        return apply_rotary(query, rotary).transpose(1, 2)

    def crossed(self, u: Tensor, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output [B, n, H] from residuals, `queries` and the target's keys and values."""
        read = self.attention(query, keys, values, bias)
        return self.with_mlp(u + small_linear(read.transpose(1, 2).flatten(2), self.cross_out.weight))


def committed_slots(cache: SlotCache, layer: int, reach: int = 0) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the committed keys and values [B, groups, slots, dim] of a target's layer, the last `reach` (0 for all),
    and their bias [B, 1, 1, slots], None where every row sees all."""
    keys, values = (x[:, :, : cache.width] for x in cache.at(layer))
    is_narrow = 0 < reach < cache.width
    if cache.uniform and cache.hidden is None and not is_narrow:
        return keys, values, None
    slot, length = torch.arange(cache.width, device=keys.device), cache.length[:, None]
    seen = slot < length
    if is_narrow:
        seen = seen & (length - slot <= reach)
    if cache.hidden is not None:
        seen[:, : cache.hidden.shape[1]] &= ~cache.hidden[:, : cache.width]
    return keys, values, additive_bias(seen[:, None, None], keys)


def slots_behind(cache: SlotCache, keys: Tensor, values: Tensor, back: int, count: int) -> tuple[Tensor, Tensor]:
    """Return a draft's keys and values, [B, groups, back + count, dim], out of a drafter's [B, groups, slots, dim]. The
    cache counts `back` nodes as committed; the `count` new nodes stand behind each row's length."""
    if cache.uniform:
        return keys[:, :, cache.width - back :], values[:, :, cache.width - back :]
    place = torch.arange(back + count, device=cache.length.device)
    at = (cache.length[:, None] - back + place)[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[3])
    return keys.gather(2, at), values.gather(2, at)


def keep_last(cache: SlotCache, most: int) -> None:
    """Drop each row's oldest slots beyond `most`, by moving its last slots to the front."""
    count = cache.length.clamp(max=most)
    source = (cache.length - count)[:, None] + torch.arange(most, device=count.device)
    for group in cache.groups:
        group.move(torch.zeros_like(count), source)
    cache.cut(count.tolist())


def recorded_keys(states: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the keys and values [B, groups, T, dim] in states of `LastKeys`, and their rotation [B, T, 2, dim]."""
    width = (states.shape[-1] - 2 * dim) // 2
    heads = states[..., : 2 * width].split(width, -1)
    keys, values = (x.unflatten(-1, (-1, dim)).transpose(1, 2) for x in heads)
    return keys, values, _signed(*states[..., 2 * width :].chunk(2, -1))


def turned_at(parts: Parts, like: Tensor, position: Tensor) -> Tensor:
    """Return the target's rotation at positions int64 [B, n] or [A, B, n], [B, n, 2, dim], in the dtype of `like`."""
    return _signed(*rotary_at(parts, like, position))


def _signed(cos: Tensor, sin: Tensor) -> Tensor:
    """Return a target's cos and sin [B, n, dim], half-split, in the layout of `apply_rotary`, [B, n, 2, dim]."""
    low, high = sin.chunk(2, -1)
    return torch.stack([cos, torch.cat([-low, high], -1)], -2)


def additive_bias(seen: Tensor, like: Tensor) -> Tensor:
    return torch.where(seen, 0.0, torch.finfo(like.dtype).min).to(like.dtype)
