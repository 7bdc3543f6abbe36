"""What every drafter of text tokens has to respect: ids that stand for visual features are neither read nor drafted."""

from __future__ import annotations

from torch import Tensor

from mmspec.vlm.target import TextTarget


def text_rows(target: TextTarget, vocab_size: int) -> list[list[int]]:
    """The prompt of every row as plain ids below `vocab_size`, without padding and placeholders of visual features."""
    kept = target.prompt < vocab_size
    for placeholder in target.parts.placeholders:
        kept &= target.prompt != placeholder
    if target.padding is not None:
        kept &= ~target.padding
    return [row[keep].tolist() for row, keep in zip(target.prompt, kept, strict=True)]


def forbid(scores: Tensor, target: TextTarget) -> Tensor:
    """Takes the placeholders of visual features out of scores [..., V], in place."""
    for placeholder in target.parts.placeholders:
        if placeholder < scores.shape[-1]:
            scores[..., placeholder] = float("-inf")
    return scores
