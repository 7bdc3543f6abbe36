"""What the layers of a decoder keep of earlier tokens, as its config says."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from mmspec.core.compat import kv_sharing_modes

# layer types of transformers -> what such a layer keeps
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
class Layer:
    """One layer.

    kind: "full", "window" or "chunk" keep slots; "states" a convolution's window and a recurrent state; "full and states" and
        "window and states" both; "cross" the keys of what the prompt shows; "shared" and "empty" nothing.
    width: tokens of its window, or of its chunk where `chunked`; None where it sees all.   field: where the config says so.
    states: how many pairs of convolution window and recurrent state it keeps.
    shape: layers of one shape have keys and values of one size, as far as the config tells.
    """

    kind: str
    width: int | None = None
    field: str | None = None
    states: int = 0
    shape: Hashable = None
    chunked: bool = False

    @property
    def slots(self) -> bool:
        return self.kind.split()[0] in ("full", "window", "chunk")


@dataclass(frozen=True)
class Plan:
    """The layers of a decoder. types: their names in the config, by which its masks are told apart; None where it has none.

    temperature: tokens from which on queries are scaled by their slot instead of their position, None for no such class.
    """

    layers: tuple[Layer, ...]
    types: tuple[str, ...] | None = None
    temperature: int | None = None

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def narrow(self) -> tuple[Layer, ...]:
        """Layers of a window or chunk, the first of each width."""
        found = {(layer.chunked, layer.width): layer for layer in self.layers if layer.width is not None}
        return tuple(sorted(found.values(), key=lambda layer: layer.width))

    @cached_property
    def stateful(self) -> tuple[int, ...]:
        """Indices of layers with recurrent states."""
        return tuple(n for n, layer in enumerate(self.layers) if layer.states)

    @cached_property
    def mixed(self) -> bool:
        """Whether the decoder tells masks apart by its layers' types."""
        seen = {(layer.chunked, layer.width) for layer in self.layers if layer.slots or layer.kind == "shared"}
        return self.types is not None and (len(seen) > 1 or bool(self.stateful))

    def hides_nothing(self, total: int) -> bool:
        """Whether no layer's window or chunk hides any of `total` tokens."""
        return all(total <= layer.width for layer in self.narrow)


def plan_of(config: object) -> Plan:
    """The layers of a text config.   Raises ValueError for layers of which no form is known (indexed, compressed...)."""
    types, count = getattr(config, "layer_types", None), config.num_hidden_layers
    if types is not None and len(types) != count:
        types = None if set(types) == {"full_attention"} else types
    configs = getattr(config, "per_layer_config", None) or [config] * count
    configs = list(configs.values()) if isinstance(configs, dict) else list(configs)
    kinds = [KINDS.get(one) for one in types] if types is not None else [_untyped(one) for one in configs]
    if None in kinds:
        unknown = sorted({one for one in types if one not in KINDS})
        raise ValueError(f"model: expected layers of attention (full, window, chunk or cross), convolution or recurrence, got "
                         f"{', '.join(unknown)}; decode it with model.generate")  # fmt: skip
    sharing = kv_sharing_modes(config)
    crossing = getattr(config, "cross_attention_layers", None) or ()
    layers = []
    for index, (kind, own) in enumerate(zip(kinds, configs, strict=False)):
        keeps = "shared" if sharing[index] == "reuse" else "cross" if index in crossing else None
        layers.append(_layer(kind, own, keeps))
    tuned = getattr(config, "attn_temperature_tuning", None) and getattr(config, "floor_scale", None)
    return Plan(tuple(layers), None if types is None else tuple(types), int(tuned) - 1 if tuned else None)


def _layer(kind: str, config: object, keeps: str | None) -> Layer:
    """A layer that sees as `kind` says. keeps: what it keeps instead."""
    width = next(((int(value), name) for name in _WIDTHS.get(kind, ()) if (value := getattr(config, name, None))), None)
    states = getattr(config, "number_of_conv_states", 1) if "states" in kind else 0
    shape = tuple(getattr(config, name, None) for name in ("head_dim", "num_key_value_heads"))
    if width is None:
        kind = {"window": "full", "chunk": "full", "window and states": "full and states"}.get(kind, kind)
    return Layer(keeps or kind, *(width or (None, None)), states=states, shape=shape, chunked=kind == "chunk")


def _untyped(config: object) -> str:
    """What a layer keeps whose config names no types."""
    if getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None):
        return "window"
    return "chunk" if getattr(config, "attention_chunk_size", None) else "full"
