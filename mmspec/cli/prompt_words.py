"""Words of a prompt that a model does not know: it would draw a picture without them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from mmspec.cli.console import say

# prompts that the zoo's models draw as asked
IMAGE_EXAMPLE = "a large red star on a navy background"
VIDEO_EXAMPLE = "a red circle moves to the right"
_LONGEST = 16  # tokens of a word


def warn_of_unknown_words(pipeline: Any, prompts: Iterable[Any], example: str) -> None:
    """Print a warning on stderr that lists the words of the prompts that a pipeline does not know.

    Args:
        pipeline: An image or video pipeline; without a tokenizer nothing is printed.
        prompts: The prompts; labels are skipped.
        example: A prompt that works, "" for none.
    """
    tokenizer = tokenizer_of(pipeline)
    words = unknown_words(tokenizer, [text for text in prompts if isinstance(text, str)])
    if words:
        advice = f'; a prompt that works: "{example}"' if example else ""
        listed = ", ".join(map(repr, words))
        say(
            f"Warning: the model does not know {listed} and draws the rest of the prompt{advice}", "yellow", stderr=True
        )


def tokenizer_of(pipeline: Any) -> Any:
    """Return the tokenizer of a pipeline's prompts, None where it has none."""
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
