"""What every drafter of text tokens has to respect: rows that have stopped, and the room that is left."""

from __future__ import annotations

from torch import Tensor

from mmspec.vlm.target import TextTarget


def useful(target: TextTarget, longest: int) -> list[int]:
    """Per row, how many drafted tokens can still be kept, at most `longest`; 0 for a row that has stopped.

    One token of the row's room is left to the target's own value behind the draft.
    """
    most = target.stopping.most
    room = [longest if most is None else min(longest, most - len(tokens) - 1) for tokens in target.tokens]
    return [max(n, 0) if alive else 0 for n, alive in zip(room, target.live, strict=True)]


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
