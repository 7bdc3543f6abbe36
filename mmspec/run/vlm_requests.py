"""Requests for text as inputs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL.Image import Image
from torch import Tensor

from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.examples import encode as encode_examples


@dataclass(frozen=True, slots=True)
class VlmPrompt:
    """A request with or without pictures."""

    text: str
    images: tuple[Image, ...] = ()  # shown before the first turn
    history: tuple[tuple[str, str], ...] = ()  # earlier turns as (role, text), the user's first


def encode(processor: Any, prompts: Sequence[VlmPrompt]) -> dict[str, Tensor]:
    """Encode a batch of prompts through the chat template, padded on the left, as inputs of `generate`. The processor
    of a text-only model is its tokenizer."""
    if not getattr(processor, "chat_template", None) and (prompt := next((p for p in prompts if p.history), None)):
        turns = 1 + sum(role == "user" for role, _ in prompt.history)
        raise ValueError(
            f"turns: expected a single turn for a processor without a chat template, got {turns}; send each turn alone"
        )
    return encode_examples(
        processor,
        [
            Example(f"prompt {number}", prompt.text, prompt.images, history=prompt.history)
            for number, prompt in enumerate(prompts, 1)
        ],
    )


def encode_turns(
    processor: Any, turns: Sequence[str], answers: Sequence[str], pictures: tuple[Image, ...]
) -> dict[str, Tensor]:
    """Return the inputs of `generate` for the last turn of a conversation, after the answers to all others; pictures
    are shown before the first turn. An invalid picture is an `ImageError`."""
    history = [
        part
        for turn, answer in zip(turns[:-1], answers, strict=False)
        for part in (("user", turn), ("assistant", answer))
    ]
    return encode(processor, [VlmPrompt(turns[-1], pictures, tuple(history))])
