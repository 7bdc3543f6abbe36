"""Conversations of several turns as model inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL.Image import Image
from torch import Tensor

from mmspec.core.images import check_picture
from mmspec.evaluate.vlm.requests import Prompt, encode


def encode_turns(
    processor: Any, turns: Sequence[str], answers: Sequence[str], pictures: tuple[Image, ...]
) -> dict[str, Tensor]:
    """Inputs of `generate` for the last of the turns, behind those before it and their answers; pictures stand before the
    first.

    Raises ValueError for a text that holds the processor's image placeholder, and for several turns to a processor without a
    chat template, which could not tell who said what; ImageError, which is one, for pictures that are none.
    """
    if len(turns) == 1:
        return encode(processor, [Prompt(turns[0], pictures)])
    if not getattr(processor, "chat_template", None):
        raise ValueError(
            f"turns: expected one for a processor without a chat template, got {len(turns)}, ask one by one"
        )
    mark = getattr(processor, "image_token", None)
    if mark and any(mark in text for text in turns):
        raise ValueError(f"text: expected no placeholder {mark!r} in it, got one, remove it")
    for picture in pictures:
        check_picture(picture, "pictures")
    messages: list[dict] = []
    for number, text in enumerate(turns):
        shown = [{"type": "image"} for _ in pictures] if number == 0 else []
        messages.append({"role": "user", "content": [*shown, {"type": "text", "text": text}]})
        if number < len(turns) - 1:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answers[number]}]})
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    images = [list(pictures)] if pictures else None
    return dict(processor(images=images, text=[text], return_tensors="pt"))
