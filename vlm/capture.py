"""What goes into a decoder and what comes out of it, whatever wrapper calls it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(slots=True)
class Seen:
    """embeds: the merged input embeddings, vision features in place; hidden: the states the head reads. [B, T, H]."""

    embeds: Tensor | None = None
    hidden: Tensor | None = None


@contextmanager
def watch(decoder: nn.Module) -> Iterator[Seen]:
    """Records the decoder's inputs and outputs of calls made by this thread inside the block."""
    seen, thread = Seen(), threading.get_ident()

    def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
        if threading.get_ident() == thread:
            embeds = kwargs.get("inputs_embeds")
            ids = kwargs.get("input_ids", args[0] if args else None)
            seen.embeds = embeds if embeds is not None else module.get_input_embeddings()(ids)

    def after(module: nn.Module, args: tuple, output: object) -> None:
        if threading.get_ident() == thread:
            seen.hidden = output[0]

    hooks = [decoder.register_forward_pre_hook(before, with_kwargs=True), decoder.register_forward_hook(after)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
