"""Prompts as video models read them: a text encoder, and each prompt of a request encoded once."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import torch
from torch import Tensor, nn

from mmspec.io.validation import check_words

# texts -> float [B, L, d], zeros where a text is shorter
Encode = Callable[[list[str]], Tensor]


class PromptEncoder:
    """A text encoder of transformers (UMT5-XXL for the published Wan models, or any that gives `last_hidden_state`) and its
    tokenizer, as an `Encode`.

    length: tokens a text is padded or cut to; 512 for the published models, which attend to the zeros at padding.
    """

    def __init__(self, encoder: nn.Module, tokenizer: object, length: int = 512):
        if length < 1:
            raise ValueError(f"length: expected at least 1, got {length}; use the model's text_len")
        self.encoder, self.tokenizer, self.length = encoder.eval().requires_grad_(False), tokenizer, length

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> Tensor:
        """float [B, length, d], zero at padding.

        Raises ValueError for a text of which the tokenizer knows no word; an empty text says nothing on purpose and passes.
        """
        rows = self.tokenizer(
            [" ".join(unescape(unescape(text)).split()) for text in texts],  # as these models' texts were cleaned
            max_length=self.length,
            padding="max_length",
            truncation=True,
            return_tensors="pt",
        )
        check_words(texts, rows["input_ids"], rows["attention_mask"], self.tokenizer)
        device = next(self.encoder.parameters()).device
        ids, mask = rows["input_ids"].to(device), rows["attention_mask"].to(device)
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return states * mask[..., None].to(states.dtype)


class PromptReader:
    """Prompts of one request, each encoded once and by itself, so that no row's states depend on the rows beside it.

    encoder: None where prompts come encoded, float [1, L, d].
    """

    def __init__(self, encoder: Encode | None):
        self.encoder = encoder
        self._read: dict[str, Tensor] = {}

    def __call__(self, prompt: str | Tensor) -> Tensor:
        """float [1, L, d].   Raises ValueError for a text without an encoder."""
        if isinstance(prompt, Tensor):
            return prompt
        if self.encoder is None:
            raise ValueError(f"prompts: expected encoded ones for a pipeline without a text encoder, got {prompt!r:.60}; give "
                             "it one, or float [B, L, d]")  # fmt: skip
        if prompt not in self._read:
            self._read[prompt] = self.encoder([prompt])
        return self._read[prompt]
