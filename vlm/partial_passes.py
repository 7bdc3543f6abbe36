"""Passes over some layers of a target, for drafters that are a part of it. They call the decoder's own layers with its
mask and rotary embeddings, and change no attribute of a module. Keys and values of drafted tokens go to the slots
behind the committed length, which only `commit` moves."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.layer_plan import attention_masks
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.draft import Draft, EntryStates
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.tree import chain
from mmspec.vlm.architectures import Parts
from mmspec.vlm.prefill import rotary_positions

SubLayer = tuple[int, Literal["attention", "mlp"]]
Mask = Tensor | Mapping[str, Tensor | None] | None
DECODERS = ("LlamaModel", "Qwen2Model", "Qwen3Model", "MistralModel", "Qwen2_5_VLTextModel", "Qwen3VLTextModel")


def check_partial(parts: Parts, entry: int) -> None:
    """Check that the layers of a target can be run apart, with `entry` as the first layer of the second part."""
    text = parts.model.config.get_text_config(decoder=True)
    kinds = {layer.kind for layer in parts.plan.layers}
    name = type(parts.decoder).__name__
    obstacles = {
        "layers with recurrent states": bool(parts.plan.stateful),
        "layers that share keys and values": "shared" in kinds,
        "layers with cross-attention": "cross" in kinds,
        "inputs of its own for every layer": bool(getattr(text, "hidden_size_per_layer_input", 0)),
        "rotary embeddings that depend on the length": bool(parts.rotary),
        f"code of yours around them ({', '.join(parts.code)})": bool(parts.code),
        f"the decoder {name}": not (parts.direct and name in DECODERS),
    }
    if present := [obstacle for obstacle, holds in obstacles.items() if holds]:
        raise ValueError(
            f"model: expected a decoder whose layers can run apart ({', '.join(DECODERS)}), got "
            f"{present[0]}; use a drafter that is not part of the target"
        )
    if not (least := first_exit(parts)) <= entry < parts.layers:
        below = f", as DeepStack adds picture features below layer {least}" if _deep_layers(parts) else ""
        raise ValueError(
            f"exit: expected a number of layers from {least} to {parts.layers - 1}{below}, got {entry}; change it"
        )


def first_exit(parts: Parts) -> int:
    """Return the least number of layers that can draft: 1, or all that DeepStack adds picture features to."""
    return max(_deep_layers(parts), 1)


def _deep_layers(parts: Parts) -> int:
    vision = getattr(parts.model.config, "vision_config", None)
    return len(getattr(vision, "deepstack_visual_indexes", None) or ())


def layers(
    parts: Parts,
    hidden: Tensor,
    first: int,
    last: int,
    position: Tensor,
    cache: SlotPool,
    mask: Mask,
    skip: Collection[SubLayer] = (),
    levels: dict[int, Tensor] | None = None,
) -> Tensor:
    """Run the layers `first` to `last - 1` from states `hidden` [B, n, H]; return the states behind them. `position` is
    int64 [B, n], or [A, B, n] for A axes of M-RoPE; `mask` is of `attention_masks`; `skip` has pairs of a layer and
    "attention" or "mlp". The states that enter the layers among `levels` are stored in it."""
    decoder, types = parts.decoder, parts.plan.types
    rotary = rotary_at(parts, hidden, position)
    for index in range(first, last):
        if levels is not None and index in levels:
            levels[index] = hidden
        call = dict(
            attention_mask=mask[types[index]] if isinstance(mask, Mapping) else mask,
            position_embeddings=rotary,
            use_cache=True,
            **{CACHE: _Slots(cache)},
        )
        hidden = _layer(decoder.layers[index], hidden, (index, "attention") in skip, (index, "mlp") in skip, call)
    if levels is not None and last in levels:
        levels[last] = hidden
    return hidden


def rotary_at(parts: Parts, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin [B, n, dim] as the decoder makes them, in the dtype of `hidden`; `position` as in `layers`."""
    decoder, position = parts.decoder, rotary_positions(position)
    rope = getattr(decoder.config, "rope_parameters", None) or {}
    if "mrope_section" in rope and position.dim() == 2:
        position = position.expand(3, *position.shape)
    return decoder.rotary_emb(hidden, position)


def _layer(layer: nn.Module, hidden: Tensor, without_attention: bool, without_mlp: bool, call: dict) -> Tensor:
    if not (without_attention or without_mlp):
        out = layer(hidden, **call)
        return out[0] if isinstance(out, tuple) else out
    if not without_attention:
        hidden = hidden + layer.self_attn(layer.input_layernorm(hidden), **call)[0]
    if not without_mlp:
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return hidden


class _Slots:
    def __init__(self, cache: SlotPool):
        self.cache = cache

    def update(self, key: Tensor, value: Tensor, layer: int, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        return self.cache.write(layer, key, value)


def slots_ahead(cache: SlotCache, count: int) -> SlotCache:
    """Return a view of a cache whose passes write `count` slots further, and see the slots between. It shares keys and
    values, but its lengths are its own, so those of the cache stay the committed lengths."""
    view = copy.copy(cache)
    if count:
        view.advance(count)
    return view


def read_ahead(
    target: object,
    hidden: Tensor,
    ahead: int,
    first: int,
    last: int,
    skip: Collection[SubLayer] = (),
    levels: dict[int, Tensor] | None = None,
) -> Tensor:
    """Run layers over a chain of nodes with states `hidden` [B, n, H], behind `ahead` nodes in the cache, the root
    included. Return states as `layers` does."""
    parts, tree = target.parts, chain(hidden.shape[1] - 1, hidden.device)
    cache = slots_ahead(target.cache, ahead)
    mask = attention_masks(parts.plan, cache, tree.ancestor, tree.depth, tree.max_depth, parts.dtype)
    position = target.positions_of((tree.depth + ahead).expand(target.batch, -1))
    return layers(parts, hidden, first, last, position, cache, mask, skip, levels)


def entry_of(target: object, draft: Draft) -> EntryStates | None:
    """Return the states with which the target's pass over a draft begins; None where it begins with the values. A level
    to record has to lie at or above them or be stored with them. Surroundings, such as strict passes, need whole
    passes, which replace the drafter's keys and values."""
    entry = draft.entry
    if entry is None or entry.value is not draft.value or target.surroundings:
        return None
    known = (isinstance(level, int) and (level >= entry.layer or level in entry.below) for level in target.levels or ())
    return entry if all(known) else None


def pass_from(parts: Parts, inputs: dict, entry: EntryStates, levels: tuple[int, ...] | None) -> tuple[Tensor, Tensor]:
    """Run the rest of a pass whose nodes a drafter has brought into the middle of the target. Return the logits [B, N,
    V], and the states [B, N, F] of `levels`, see `record_states`; None for the last states."""
    seen = None if levels is None else dict.fromkeys(levels, entry.hidden) | entry.below
    position, cache, mask = (inputs[name] for name in ("position_ids", CACHE, "attention_mask"))
    last = parts.decoder.norm(layers(parts, entry.hidden, entry.layer, parts.layers, position, cache, mask, (), seen))
    device = entry.hidden.device  # layers may lie on several devices
    states = [last] if seen is None else [seen[level] for level in levels]
    return parts.head(last).to(device), torch.cat([state.to(device) for state in states], -1)
