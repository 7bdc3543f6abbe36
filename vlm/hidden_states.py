"""Hooks on a decoder that record its inputs and hidden states or replace its mask, for calls of the current thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.layers.compat import CACHE


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """The state that a decoder layer returns, which is the input of the next except where models add to it, as
    DeepStack does."""

    layer: int


@dataclass(frozen=True, slots=True)
class LastKeys:
    """The rotated keys and values that the last layer caches, then cos and sin of its positions, side by side with
    joined heads: width (2 * groups + 2) * dim."""


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
    embeds: Tensor | None = None  # float [B, T, H], the input embeddings, with vision features in place
    hidden: Tensor | None = None  # float [B, T, H], the states that the head reads
    levels: Tensor | None = None  # float [B, T, n * H], n chosen levels concatenated; None without levels


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
    """Record the inputs and outputs of the decoder in calls of this thread inside the block. A level is an index for
    the input of that decoder layer, the number of layers for the input of the final norm, a `LayerOutput`, or
    `LastKeys`."""
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
    """Return the decoder layer or final norm whose input is state `level`; the last `last` are excluded."""
    layers = decoder.layers
    if not 0 <= level <= len(layers) - last:
        raise ValueError(f"levels: expected layers 0 to {len(layers) - last} of the target, got {level}")
    return layers[level] if level < len(layers) else decoder.norm
