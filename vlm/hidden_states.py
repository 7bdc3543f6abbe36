"""Hooks of one thread around a decoder: its inputs, its hidden states at chosen levels, and a mask in the place of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """The state that leaves decoder layer `layer`, as the layer itself returns it. What enters the next layer is the same
    but where a model adds something in between, as those with DeepStack do with vision features."""

    layer: int


Level = int | LayerOutput


@dataclass(slots=True)
class RecordedStates:
    """embeds: the merged input embeddings, vision features in place; hidden: the states the head reads, [B, T, H].

    levels: [B, T, n * H], the states at n chosen levels, side by side; None where none were chosen.
    """

    embeds: Tensor | None = None
    hidden: Tensor | None = None
    levels: Tensor | None = None


@contextmanager
def override_mask(decoder: nn.Module, mask: Tensor | Mapping[str, Tensor | None]) -> Iterator[None]:
    """The decoder gets `mask` in calls made by this thread inside the block, whatever its wrapper makes of the one it got."""
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
    """Records the decoder's inputs and outputs of calls made by this thread inside the block.

    levels: states to record too: an index stands for what enters that decoder layer, the number of layers for what enters
    the final norm, `LayerOutput` for what a layer returns.   Raises ValueError for a layer the decoder does not have.
    """
    seen, thread = RecordedStates(), threading.get_ident()
    found: dict[Level, Tensor] = {}

    def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
        if threading.get_ident() == thread:
            embeds = kwargs.get("inputs_embeds")
            ids = kwargs.get("input_ids", args[0] if args else None)
            seen.embeds = embeds if embeds is not None else module.get_input_embeddings()(ids)

    def after(module: nn.Module, args: tuple, output: object) -> None:
        if threading.get_ident() == thread:
            seen.hidden = output[0]
            if levels is not None:
                device = found[levels[0]].device  # layers may lie on several
                seen.levels = torch.cat([found[level].to(device) for level in levels], -1)

    def entering(level: int) -> Callable:
        def note(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if threading.get_ident() == thread:
                found[level] = args[0] if args else kwargs["hidden_states"]

        return note

    def leaving(level: LayerOutput) -> Callable:
        def note(module: nn.Module, args: tuple, output: object) -> None:
            if threading.get_ident() == thread:
                found[level] = output[0] if isinstance(output, tuple) else output

        return note

    hooks = [decoder.register_forward_pre_hook(before, with_kwargs=True), decoder.register_forward_hook(after)]
    try:
        for level in levels or ():
            if isinstance(level, LayerOutput):
                hooks.append(_layer(decoder, level.layer, 1).register_forward_hook(leaving(level)))
            else:
                hooks.append(_layer(decoder, level).register_forward_pre_hook(entering(level), with_kwargs=True))
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _layer(decoder: nn.Module, level: int, last: int = 0) -> nn.Module:
    """The module that state `level` enters: a decoder layer, or the final norm behind them all.   last: how many of these
    modules, from the end, are none that is asked for."""
    layers = decoder.layers
    if not 0 <= level <= len(layers) - last:
        raise ValueError(f"levels: expected layers 0 to {len(layers) - last} of the target, got {level}")
    return layers[level] if level < len(layers) else decoder.norm
