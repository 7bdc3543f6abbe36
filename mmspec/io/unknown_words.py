"""Words of a prompt that a model does not know: it would draw the rest of the prompt without them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_LONGEST = 16  # tokens of a word


def tokenizer_of(pipeline: Any) -> Any:
    encoder = getattr(pipeline, "encoder", None) or getattr(pipeline.model, "captions", None)
    return getattr(encoder, "tokenizer", None)


def unknown_words(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Return the words of which a tokenizer knows no part, each once, in the order of the texts."""
    words = list(dict.fromkeys(word for text in texts for word in re.findall(r"\w+", text)))
    if tokenizer is None or not words:
        return []
    special = {*tokenizer.all_special_ids}  # the unknown token among them
    rows = tokenizer(words, max_length=_LONGEST, padding="max_length", truncation=True, return_tensors="pt")
    unknown = []
    for word, ids, mask in zip(words, rows["input_ids"].tolist(), rows["attention_mask"].tolist(), strict=True):
        parts = [part for part, is_real in zip(ids, mask, strict=True) if is_real and part not in special]
        if not any(letter.isalnum() for token in tokenizer.convert_ids_to_tokens(parts) for letter in token):
            unknown.append(word)
    return unknown
