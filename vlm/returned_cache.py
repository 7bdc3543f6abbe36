"""The transformers cache that a call hands back: one of the class's own layout, or the empty one that the caller gave."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, StaticCache
from transformers.cache_utils import DynamicLayer, StaticLayer

from mmspec.core.layers.state_layer import StateLayer
from mmspec.vlm.conversation.past import Past
from mmspec.vlm.target import TextTarget

# implementations that give the text of a dynamic cache: they differ in where and how long tensors are kept
_SAME_TEXT = ("dynamic", "offloaded", "static", "offloaded_static", "sliding_window", "hybrid", "hybrid_chunked",
              "offloaded_hybrid", "offloaded_hybrid_chunked")  # fmt: skip


def check_implementation(name: object) -> None:
    """Raises ValueError for a `cache_implementation` that changes the text, as a quantized cache does."""
    if name is not None and name not in _SAME_TEXT:
        raise ValueError(f"cache_implementation: expected one that keeps keys and values as they are, such as 'dynamic', got "
                         f"{name!r}; leave it out, or decode with model.generate")  # fmt: skip


def cache_to_fill(cache: object, inputs: Mapping[str, object] | None, config: GenerationConfig) -> Cache | None:
    """The cache that a call has to fill, None where it fills none.

    transformers makes a cache for every call, in the layout of the class. It is handed back with `return_dict_in_generate`.
    A cache that the caller gave is filled in any case.

    Args:
        cache: the call's `past_key_values`.
        inputs: the arguments of the call as the caller gave them; None where they are not known.
        config: the call's settings.

    Raises:
        ValueError: for a caller's cache with content, and for one of a class whose text or layout is not known.
    """
    if cache is None or isinstance(cache, Past):
        return None
    if inputs is not None and inputs.get("past_key_values") is not cache:
        return cache if config.return_dict_in_generate and config.use_cache else None
    name = type(cache).__name__
    if type(cache) not in (DynamicCache, StaticCache):
        raise ValueError(f"past_key_values: expected a DynamicCache or a StaticCache, got a {name}; leave it out")
    if any(_filled(layer) for layer in cache.layers):
        raise ValueError("past_key_values: expected none or an empty cache, or that of a mmspec.Session, got a "
                         f"{name} with content; send the whole prompt without it")  # fmt: skip
    return cache


def check_layout(cache: Cache, target: TextTarget) -> None:
    """Raises ValueError where a request's keys, values and states do not fit into the layers of `cache`, or may not be those
    of its tokens: a criterion may end one row behind another, and recurrent layers do not go back."""
    if target.parts.plan.stateful and target.stopping.others and target.batch > 1:
        raise ValueError("stopping_criteria: expected eos ids and lengths alone beside a returned cache with recurrent "
                         "states, got others in a batch; send the rows one by one")  # fmt: skip
    for index in target.parts.plan.stateful:
        if index >= len(cache.layers) or not hasattr(cache.layers[index], "update_conv_state"):
            raise ValueError(f"past_key_values: expected a cache with layers for recurrent states, got a "
                             f"{type(cache).__name__} without them; write DynamicCache(config=model.config)")  # fmt: skip
    fixed = [layer for layer in cache.layers if isinstance(layer, StaticLayer) and not layer.is_sliding]
    room = min((layer.max_cache_len for layer in fixed), default=None)
    if room is not None and (target.most is None or target.prompt.shape[1] + target.most - 1 > room):
        most = "no limit" if target.most is None else target.prompt.shape[1] + target.most - 1
        raise ValueError(f"past_key_values: expected a cache with room for prompt and answer, {most} tokens, got one for "
                         f"{room}; make a larger one")  # fmt: skip


@torch.no_grad()
def fill(cache: Cache, target: TextTarget) -> None:
    """Puts into `cache` what a finished request holds: all tokens of the longest row but the last, padding included.

    Every row has to be as long, see `output.complete`. Keys and values of layers that see all tokens are views into
    the request's own pool, so that nothing is copied.
    """
    held = target.cache
    for index, layer in enumerate(target.parts.plan.layers):
        own = held.layers[index]
        if isinstance(own, StateLayer):
            for number, window in own.committed.conv.items():
                cache.layers[index].update_conv_state(window, number)
            for number, states in own.committed.recurrent.items():
                cache.layers[index].update_recurrent_state(states, number)
        if layer.slots and own.is_initialized:
            _put(cache, index, *(one[:, :, : held.width] for one in held.at(index)))
        elif layer.kind == "cross" and own.is_initialized:
            _put(cache, index, own.keys, own.values)


def _put(cache: Cache, index: int, keys: Tensor, values: Tensor) -> None:
    """Fills one empty layer. keys, values: [B, heads, L, dim]."""
    if cache.layer_class_to_replicate is not None:
        cache.layers.extend(cache.layer_class_to_replicate() for _ in range(index + 1 - len(cache.layers)))
    layer = cache.layers[index]
    if type(layer) is DynamicLayer:
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
    else:
        layer.update(keys, values)
    if cache.offloading:
        cache.offload(index, cache.only_non_sliding)


def _filled(layer: object) -> bool:
    """Whether a layer of a cache holds tokens or states."""
    states = getattr(layer, "has_previous_state", {})
    return any(states.values()) or (hasattr(layer, "get_seq_length") and int(layer.get_seq_length()) > 0)
