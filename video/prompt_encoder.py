"""The text encoder of video models, and the prompts of a request, each encoded once."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import torch
from torch import Tensor, nn

from mmspec.io.validation import check_words

# texts -> float [B, L, d], zeros where a text is shorter
Encode = Callable[[list[str]], Tensor]


class PromptEncoder:
    """A text encoder of transformers and its tokenizer, as an `Encode`.

    The published Wan models use UMT5-XXL. Any encoder with `last_hidden_state` works.

    Args:
        encoder: The text encoder.
        length: Tokens to which a text is padded or cut; 512 for the published models, which attend to the padding.

    Raises:
        ValueError: The length is below 1.
    """

    def __init__(self, encoder: nn.Module, tokenizer: object, length: int = 512):
        if length < 1:
            raise ValueError(f"length: expected at least 1, got {length}; use the model's text_len")
        self.encoder, self.tokenizer, self.length = encoder.eval().requires_grad_(False), tokenizer, length

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> Tensor:
        """Return states float [B, length, d], zero at padding; an empty text is allowed."""
        rows = self.tokenizer(
            [" ".join(unescape(unescape(text)).split()) for text in texts],  # cleaned as in training
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
    """The prompts of one request, each encoded once and alone, so that no row depends on the other rows."""

    def __init__(self, encoder: Encode | None):
        self.encoder = encoder
        self._read: dict[str, Tensor] = {}

    def __call__(self, prompt: str | Tensor) -> Tensor:
        if isinstance(prompt, Tensor):
            return prompt
        if self.encoder is None:
            raise ValueError(
                f"prompts: expected float [B, L, d] for a pipeline without a text encoder, got {prompt!r:.60}; "
                "encode the prompts or add an encoder"
            )
        if prompt not in self._read:
            self._read[prompt] = self.encoder([prompt])
        return self._read[prompt]
