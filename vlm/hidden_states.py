"""Hooks on a decoder that record its inputs and hidden states or replace its mask, for calls of the current thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.compat import CACHE


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """The state that decoder layer `layer` returns.

    It equals the input of the next layer except in models that add to it in between, such as vision features in DeepStack.
    """

    layer: int


@dataclass(frozen=True, slots=True)
class LastKeys:
    """The rotated keys and the values that the last layer caches, then cos and sin of its positions, side by side.

    Heads are joined, so the width is (2 * groups + 2) * dim.
    """


Level = int | LayerOutput | LastKeys


class _KeyRecorder:
    """A cache that also notes the keys and values [B, groups, T, dim] of a layer."""

    def __init__(self, cache: Any):
        self.cache = cache

    def update(self, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.pair = key, value
        return (key, value) if self.cache is None else self.cache.update(key, value, *args, **kwargs)

    def joined(self, rotary: tuple[Tensor, Tensor]) -> Tensor:
        heads = (x.transpose(1, 2).flatten(2) for x in self.pair)
        return torch.cat([*heads, *(x.expand(len(self.pair[0]), -1, -1) for x in rotary)], -1)


@dataclass(slots=True)
class RecordedStates:
    """The recorded states of a decoder's call.

    Attributes:
        embeds: float [B, T, H], the input embeddings, with vision features in place.
        hidden: float [B, T, H], the states that the head reads.
        levels: float [B, T, n * H], the concatenated states of n chosen levels; None without levels.
    """

    embeds: Tensor | None = None
    hidden: Tensor | None = None
    levels: Tensor | None = None


@contextmanager
def override_mask(decoder: nn.Module, mask: Tensor | Mapping[str, Tensor | None]) -> Iterator[None]:
    """Pass `mask` to the decoder in calls of this thread inside the block, in place of the mask of its wrapper."""
    thread = threading.get_ident()

    def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        return (args, kwargs | {"attention_mask": mask}) if threading.get_ident() == thread else None

    hook = decoder.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def record_states(decoder: nn.Module, levels: tuple[Level, ...] | None = None) -> Iterator[RecordedStates]:
    """Record the inputs and outputs of the decoder in calls of this thread inside the block.

    Args:
        decoder: The decoder.
        levels: Further states to record: an index for the input of that decoder layer, the number of layers for the input
            of the final norm, a `LayerOutput` for the output of a layer, `LastKeys` for the last layer's keys and values.

    Raises:
        ValueError: The decoder has no such layer.
    """
    seen, thread = RecordedStates(), threading.get_ident()
    states: dict[Level, Tensor] = {}
    recorders: list[Any] = []

    def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
        if threading.get_ident() == thread:
            seen.embeds = kwargs.get("inputs_embeds")
            if seen.embeds is None and len(hooks) == count:  # a call of our own would run users' hooks once more
                hooks.append(module.get_input_embeddings().register_forward_hook(embedded))

    def embedded(module: nn.Module, args: tuple, output: Tensor) -> None:
        if threading.get_ident() == thread and seen.embeds is None:
            seen.embeds = output

    def after(module: nn.Module, args: tuple, output: object) -> None:
        if threading.get_ident() == thread:
            seen.hidden = output[0]
            if levels is not None:
                device = states[levels[0]].device  # layers may lie on several devices
                seen.levels = torch.cat([states[level].to(device) for level in levels], -1)

    def entering(level: int) -> Callable:
        def note(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if threading.get_ident() == thread:
                states[level] = args[0] if args else kwargs["hidden_states"]

        return note

    def leaving(level: LayerOutput) -> Callable:
        def note(module: nn.Module, args: tuple, output: object) -> None:
            if threading.get_ident() == thread:
                states[level] = output[0] if isinstance(output, tuple) else output

        return note

    def caching(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if threading.get_ident() != thread:
            return None
        recorders[:] = _KeyRecorder(kwargs.get(CACHE)), kwargs["position_embeddings"]
        return args, kwargs | {CACHE: recorders[0]}

    def cached(module: nn.Module, args: tuple, output: object) -> None:
        if threading.get_ident() == thread:
            states[LastKeys()] = recorders[0].joined(recorders[1])

    hooks = [decoder.register_forward_pre_hook(before, with_kwargs=True), decoder.register_forward_hook(after)]
    try:
        for level in levels or ():
            if isinstance(level, LayerOutput):
                hooks.append(_layer(decoder, level.layer, 1).register_forward_hook(leaving(level)))
            elif isinstance(level, LastKeys):
                attention = decoder.layers[-1].self_attn
                hooks.append(attention.register_forward_pre_hook(caching, with_kwargs=True))
                hooks.append(attention.register_forward_hook(cached))
            else:
                hooks.append(_layer(decoder, level).register_forward_pre_hook(entering(level), with_kwargs=True))
        count = len(hooks)
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _layer(decoder: nn.Module, level: int, last: int = 0) -> nn.Module:
    """Return the module whose input is state `level`, a decoder layer or the final norm; the last `last` are excluded."""
    layers = decoder.layers
    if not 0 <= level <= len(layers) - last:
        raise ValueError(f"levels: expected layers 0 to {len(layers) - last} of the target, got {level}")
    return layers[level] if level < len(layers) else decoder.norm
