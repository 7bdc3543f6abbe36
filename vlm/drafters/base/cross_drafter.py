"""Base of drafters that attend to a short window of their own keys, then to keys of verified tokens alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import LayerConfig, rms_norm
from mmspec.core.drafting.rotary import rotary_of
from mmspec.core.round.cache import SlotCache
from mmspec.io.validation import Size, check_fields
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.committed_keys import FrozenKeysLayer, additive_bias, keep_last, slots_behind
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter

SLACK = 32  # slots beyond the window before the oldest are dropped
Seen = tuple[Tensor, Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class CrossConfig:
    hidden_size: int  # the target's
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int  # the target's
    num_key_value_heads: int = 0  # of its own keys, 0 for as many as queries have
    head_dim: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    window: Size = 512  # the text tokens whose own keys it keeps

    def __post_init__(self) -> None:
        check_fields(self)
        self.layer()

    def layer(self) -> LayerConfig:
        return LayerConfig.of(self, norms_input=True)


class CrossDrafter(ShapedDrafter):
    """Base of drafters whose layer reads token embeddings, a window of its own keys, and keys of verified tokens. Its
    input is text alone, so a draft never depends on features that were drafted before. A token at depth d of a draft
    sees the keys up to d + 1 tokens before it: those of its own block are not verified."""

    predicts_states: ClassVar[bool] = False
    config: CrossConfig

    def __init__(self, config: CrossConfig):
        super().__init__(config)
        self.layer = FrozenKeysLayer(config.layer())
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    @torch.no_grad()
    def start_from(self, parts: Parts) -> Self:
        self.norm.weight.copy_(parts.decoder.norm.weight)
        return self

    def keys_of(self, view: PromptView) -> tuple[Tensor, Tensor, Tensor]:
        """Return, in training, keys and values [B, groups, S, dim] of tokens 0..S-1, and their rotation [B, S, 2, dim]."""
        raise NotImplementedError

    def rotary(self, position: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the rotation of its own keys at positions int64 [B, n], the numbers of text tokens."""
        return rotary_of(position, self.layer.config.dim, self.config.rope_theta, dtype)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return the float32 logits [..., V] of the layer's outputs [..., H]."""
        return head(rms_norm(self.norm, out)).float()

    def read(self, view: PromptView) -> PromptSlots:
        text = view.picture == 0
        return pack_slots(view.embeds, view.embeds, text if view.real is None else text & view.real, text)

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Return the outputs [B, R - first, H] at each depth; only the keys that a token sees depend on its depth."""
        layer, dim = self.layer, self.layer.config.dim
        query, key, value = layer.heads(slots.attend, self.rotary(slots.position, slots.attend.dtype))
        place = torch.arange(key.shape[2], device=key.device)
        back = place[first:, None] - place
        own = layer.attention(
            query[:, :, first:], key, value, additive_bias((back >= 0) & (back < self.config.window), key)
        )
        u = layer.behind_window(slots.carry[:, first:], own)
        keys, values, rotary = self.keys_of(view)
        origin = slots.origin[:, first:]
        at = (origin + 1).clamp(0, view.hidden.shape[1] - 1)  # slot j holds token j + 1
        turned = rotary.gather(1, at[..., None, None].expand(-1, -1, 2, dim))
        query, token = layer.queries(u, turned), torch.arange(keys.shape[2], device=keys.device)
        outputs = []
        for depth in range(depths):
            seen = token <= (origin - depth)[..., None]  # [B, R - first, S]
            if view.real is not None:
                seen = seen & view.real[:, None]
            outputs.append(layer.crossed(u, query, keys, values, additive_bias(seen[:, None], keys)))
        return outputs


@dataclass(slots=True)
class Places:
    """The places of n tokens, made once for all passes of a draft."""

    own: Tensor  # float [B, n, 2, dim], the rotation of their own queries and keys
    turned: Tensor  # float [B, n, 2, dim], the rotation of their queries for keys of verified tokens
    bias: Tensor | None  # float [B, 1, n, slots], over the window's committed slots; None where all are seen

    def at(self, index: int) -> Self:
        """Return the place of a single token, which all tokens of a level share."""
        here = slice(index, index + 1)
        bias = None if self.bias is None else self.bias[:, :, here]
        return Places(self.own[:, here], self.turned[:, here], bias)


class CrossState(FeatureState):
    """The drafter's own keys of the last text tokens; `seen` are the keys, values and bias of verified tokens for a
    round. `places` are those of the tokens that the next pass reads, or of all tokens of a draft by depth."""

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.seen: Seen | None = None
        self.places: Places | None = None

    @torch.no_grad()
    def prefill(self) -> None:
        """Read the last text tokens of the prompt; the first token of a row belongs to no pair."""
        target, window = self.target, self.drafter.config.window
        self.cache = SlotCache(1, window + SLACK + 2 * (self.slots_ahead + 1))
        ids, real = target.prompt, None if target.padding is None else ~target.padding
        placeholders = torch.tensor(target.parts.placeholders, device=ids.device)
        text = ~torch.isin(ids[:, 1:], placeholders)
        if real is not None:
            text &= real[:, 1:] & real[:, :-1]
        recent = text.flip(1).cumsum(1).flip(1) <= window
        token = ids[:, 1:, None]
        slots = pack_slots(token, token, text & recent, text)
        embeds = self.drafter.embeddings(slots.attend[..., 0], target.parts)
        self.remember(embeds, self.drafter.rotary(slots.position, embeds.dtype), slots.count)
        self.next_position = slots.count

    def catch_up(self, depth: int | None = None) -> None:
        """Read the new tokens, the last of which is the root, and place the tokens of a draft behind it."""
        *_, counts = self.pending_features.known()
        behind = 1 - torch.tensor(counts, device=self.next_position.device)[:, None]  # the first new token's
        if self.cache.width > self.drafter.config.window + SLACK:
            keep_last(self.cache, self.drafter.config.window)
        self.seen = self.look()
        new = torch.arange(max(counts), device=behind.device)
        self.places = self._places(new, behind + new)
        super().catch_up(depth)
        drafted = torch.arange(max(self.deepest, 1), device=behind.device)
        self.places = self._places(drafted, (drafted + 1).expand(len(counts), -1))

    def look(self) -> Seen:
        """Return the keys, values and bias of verified tokens, before a draft."""
        raise NotImplementedError

    def turned(self, like: Tensor, behind: Tensor) -> Tensor:
        """Return the rotation [B, n, 2, dim] of queries `behind` tokens after the root, int64 [B, n]."""
        raise NotImplementedError

    def _places(self, ahead: Tensor, behind: Tensor) -> Places:
        """Return the places of tokens `ahead` of the next position, int64 [n], and `behind` the root, int64 [B, n]."""
        like, cache, window = self.target.parts.like, self.cache, self.drafter.config.window
        own = self.drafter.rotary(self.next_position[:, None] + ahead, like.dtype)
        bias = None
        if not cache.uniform or cache.width + len(ahead) > window:
            place, length = torch.arange(cache.width, device=ahead.device), cache.length[:, None, None]
            bias = additive_bias(((place < length) & (place > length + ahead[:, None] - window))[:, None], like)
        return Places(own, self.turned(like, behind), bias)

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        """See `PairState.read`; `hidden` is not read, and tokens of a draft have a number as `ahead`."""
        self.passes += 1
        layer, places = self.drafter.layer, self.places.at(ahead) if isinstance(ahead, int) else self.places
        embeds = self.drafter.embeddings(value, self.target.parts)
        u = layer.behind_window(embeds, self._windowed(*layer.heads(embeds, places.own), places.bias, ancestor, back))
        return layer.crossed(u, layer.queries(u, places.turned), *self.seen)

    def _windowed(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, ancestor: Tensor | None, back: int
    ) -> Tensor:
        """Return the attended values [B, heads, n, dim] of its own keys: committed tokens, and ancestors in the draft."""
        layer, (keys, values) = self.drafter.layer, self.cache.write(0, key, value)
        if ancestor is None and self.cache.uniform:  # a chain sees all of its own tokens
            seen = None if bias is None else F.pad(bias, (0, keys.shape[2] - bias.shape[3]))
            return layer.attention(query, keys, values, seen)
        width = self.cache.width - back
        tree = slots_behind(self.cache, keys, values, back, key.shape[2])
        drafted = *tree, None if ancestor is None else additive_bias(ancestor[:, None], keys)
        return layer.attention_in_parts(query, (keys[:, :, :width], values[:, :, :width], bias), drafted)
