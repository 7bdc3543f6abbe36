"""Prompt lookup: drafts by copying what followed the same n-gram earlier in the prompt or in the answer."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.core.arguments import check_fields
from mmspec.vlm.drafters.prompt_lookup.state import LookupState
from mmspec.vlm.target import TextTarget


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Chain drafts from n-gram matches, without a model ("Prompt Lookup Decoding", Saxena 2023).

    The last `max_ngram` tokens of a row (then fewer, down to `min_ngram`) are sought in its prompt and answer; up to
    `longest` tokens after their most recent occurrence become the draft. Never proposes ids of visual placeholders.
    Deterministic, so exact with every exact rule for deterministic drafts.
    Raises ValueError unless 1 <= min_ngram <= max_ngram and longest >= 1.
    """

    longest: int = 5
    max_ngram: int = 3
    min_ngram: int = 1

    name = "prompt_lookup"
    from_ids = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.longest < 1:
            raise ValueError(f"longest: expected at least 1, got {self.longest}")
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise ValueError(f"min_ngram: expected 1 to max_ngram={self.max_ngram}, got {self.min_ngram}")

    def open(self, target: TextTarget) -> LookupState:
        return LookupState(self, target)
