from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.layers.compat import kv_sharing_modes
from mmspec.core.round.pool import SlotPool

# layer types of transformers -> the memory of such a layer
KINDS = {
    "full_attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "states",
    "conv": "states",
    "hybrid": "full and states",
    "hybrid_sliding": "window and states",
    "mlp": "empty",
    "moe": "empty",
    "cross_attention": "cross",
}
_WIDTHS = {"window": ("sliding_window",), "chunk": ("attention_chunk_size",), "window and states": ("sliding_window",)}


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer: "full", "window" and "chunk" store slots; "states" stores a convolution's window and a recurrent state;
    "full and states" and "window and states" both; "cross" the keys of the images; "shared" and "empty" nothing."""

    kind: str
    width: int | None = None  # of its window, or of its chunk if `chunked`; None where it sees all tokens
    field: str | None = None  # the config field that sets the width
    states: int = 0  # pairs of convolution window and recurrent state
    shape: Hashable = None  # layers of one shape have keys and values of one size, as far as the config shows
    chunked: bool = False

    @property
    def slots(self) -> bool:
        return self.kind.split()[0] in ("full", "window", "chunk")


@dataclass(frozen=True)
class LayerPlan:
    """The layers of a decoder."""

    layers: tuple[LayerSpec, ...]
    types: tuple[str, ...] | None = None  # in the config, by which the decoder selects masks
    temperature: int | None = None  # the slot from which on queries are scaled by slot, not position; None never

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def narrow(self) -> tuple[LayerSpec, ...]:
        """Return the first layer of each width with a window or chunk."""
        widths = {(layer.chunked, layer.width): layer for layer in self.layers if layer.width is not None}
        return tuple(sorted(widths.values(), key=lambda layer: layer.width))

    @cached_property
    def stateful(self) -> tuple[int, ...]:
        return tuple(n for n, layer in enumerate(self.layers) if layer.states)

    @cached_property
    def mixed(self) -> bool:
        seen = {(layer.chunked, layer.width) for layer in self.layers if layer.slots or layer.kind == "shared"}
        return self.types is not None and (len(seen) > 1 or bool(self.stateful))

    def hides_nothing(self, total: int) -> bool:
        return all(total <= layer.width for layer in self.narrow)


def layer_plan(config: object) -> LayerPlan:
    types, count = getattr(config, "layer_types", None), config.num_hidden_layers
    if types is not None and len(types) != count:
        types = None if set(types) == {"full_attention"} else types
    configs = getattr(config, "per_layer_config", None) or [config] * count
    configs = list(configs.values()) if isinstance(configs, dict) else list(configs)
    kinds = [KINDS.get(name) for name in types] if types is not None else [_untyped(own) for own in configs]
    if None in kinds:
        unknown = sorted({name for name in types if name not in KINDS})
        raise ValueError(
            f"model: expected layers of attention (full, window, chunk or cross), convolution or recurrence, got "
            f"{', '.join(unknown)}; decode it with model.generate"
        )
    sharing = kv_sharing_modes(config)
    crossing = getattr(config, "cross_attention_layers", None) or ()
    layers = []
    for index, (kind, own) in enumerate(zip(kinds, configs, strict=False)):
        keeps = "shared" if sharing[index] == "reuse" else "cross" if index in crossing else None
        layers.append(_layer(kind, own, keeps))
    tuned = getattr(config, "attn_temperature_tuning", None) and getattr(config, "floor_scale", None)
    return LayerPlan(tuple(layers), None if types is None else tuple(types), int(tuned) - 1 if tuned else None)


def _layer(kind: str, config: object, keeps: str | None) -> LayerSpec:
    """Let `keeps` override the kind of its memory."""
    width = next(((int(value), name) for name in _WIDTHS.get(kind, ()) if (value := getattr(config, name, None))), None)
    states = getattr(config, "number_of_conv_states", 1) if "states" in kind else 0
    shape = tuple(getattr(config, name, None) for name in ("head_dim", "num_key_value_heads"))
    if width is None:
        kind = {"window": "full", "chunk": "full", "window and states": "full and states"}.get(kind, kind)
    return LayerSpec(keeps or kind, *(width or (None, None)), states=states, shape=shape, chunked=kind == "chunk")


def _untyped(config: object) -> str:
    if getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None):
        return "window"
    return "chunk" if getattr(config, "attention_chunk_size", None) else "full"


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    tokens: int
    name: str  # the config field that sets it

    def hides_nothing(self, prompt: int, most: int | None) -> bool:
        """Return False without a limit of new tokens."""
        return most is not None and prompt + most <= self.tokens


def narrowest_window(config: object) -> AttentionWindow | None:
    """Return None where every layer sees the whole context."""
    plan = layer_plan(config)
    others = sorted({layer.kind for layer in plan.layers if not layer.slots or layer.states})
    if others:
        raise ValueError(
            f"model: expected layers of full attention, or with a window, got {', '.join(others)}; "
            "decode it with model.generate"
        )
    return next((AttentionWindow(layer.width, layer.field) for layer in plan.narrow), None)


_RECURRENT = ("linear_attention", "conv", "mlp", "moe")  # further keys of a decoder's masks, beside its layers' types


def attention_masks(
    plan: LayerPlan, pool: SlotPool, ancestor: Tensor, depth: Tensor, deepest: int, dtype: torch.dtype
) -> Tensor | dict[str, Tensor | None] | None:
    """Return the `attention_mask` of a draft: None for single nodes that see everything; a bias [R, 1, N, S] where all
    layers see the same; else a bias by layer type, None for layers without attention. A node sees a slot that is
    committed or an ancestor's (bool [R, N, N]), within its window (fewer than `width` tokens back) or chunk (tokens
    counted from the row's first). A row's tokens are its slots without padding, then depths int64 [R, N], at most
    `deepest`."""
    idle = plan.hides_nothing(pool.width + deepest + 1)
    if ancestor.shape[-1] == 1 and pool.uniform and pool.hidden is None and idle and not plan.stateful:
        return None
    full = pool.bias(ancestor, dtype)
    if idle and not plan.mixed:
        return full
    return as_decoder_masks(
        plan, full, [full if idle else narrow_bias(full, pool, depth, layer) for layer in plan.narrow]
    )


def as_decoder_masks(plan: LayerPlan, full: Tensor, narrow: list[Tensor]) -> Tensor | dict[str, Tensor | None]:
    """Use `full` for layers that see all, `narrow` for `plan.narrow`."""
    own = dict(zip(((layer.chunked, layer.width) for layer in plan.narrow), narrow, strict=True))
    if not plan.mixed:
        return narrow[0] if narrow else full
    masks: dict[str, Tensor | None] = {name: None for name in _RECURRENT}
    masks["full_attention"] = full
    for name, layer in zip(plan.types, plan.layers, strict=False):
        if name not in _RECURRENT:
            masks[name] = own.get((layer.chunked, layer.width), full)
        if name == "hybrid_sliding":
            masks["sliding_attention"] = masks[name]
    return masks


def narrow_bias(bias: Tensor, pool: SlotPool, depth: Tensor, layer: LayerSpec) -> Tensor:
    """Return the bias [R, 1, N, S] with slots outside a layer's window or chunk hidden as well, [B, 1, N, S]."""
    length = pool.length[:, None]
    query = length + depth  # [B, N]
    token = torch.arange(bias.shape[-1], device=bias.device).repeat(query.shape[0], 1)
    # a node's position is its depth, not its slot
    token.scatter_(1, length + torch.arange(query.shape[1], device=bias.device), query)
    if layer.chunked:
        start = 0 if pool.hidden is None else pool.hidden.sum(-1)[:, None]
        query, token = (query - start) // layer.width, (token - start) // layer.width
        outside = query[:, :, None] != token[:, None, :]
    else:
        outside = query[:, :, None] - token[:, None, :] >= layer.width
    low = torch.finfo(bias.dtype).min
    return bias.masked_fill(outside[:, None], low)
