"""Which tokens a drafter of a reduced vocabulary is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ReducedVocabulary:
    """Rising ids out of `vocab_size` tokens.   share: of the counted answer tokens that are in it."""

    ids: tuple[int, ...]
    vocab_size: int
    share: float = 1.0

    @property
    def d2t(self) -> Tensor:
        """int64 [k], what is added to a drafted index to get the token's id."""
        return torch.tensor(self.ids) - torch.arange(len(self.ids))

    @property
    def t2d(self) -> Tensor:
        """bool [vocab_size], which tokens are in it."""
        return torch.zeros(self.vocab_size, dtype=torch.bool).index_fill_(0, torch.tensor(self.ids), True)


def reduced_vocabulary(
    answers: Iterable[Sequence[int]],
    vocab_size: int,
    most: int,
    always: Iterable[int] = (),
    never: Iterable[int] = (),
) -> ReducedVocabulary:
    """The most frequent tokens of answers ("EAGLE-3" counts the assistant's part of its training set).

    answers: token ids of answers alone, so that multimodal answers decide: a table counted over chat text lacks the
    numbers, names and scripts that pictures are read with.   most: so many tokens at most; tokens that no answer holds
    are left out.   always: kept whatever their count (the end token).   never: left out whatever their count (image
    placeholders). Of equally frequent tokens the smaller id stays.
    Raises ValueError when nothing is left, when `always` holds more than `most`, and for ids that are no tokens.
    """
    counts = Counter(token for answer in answers for token in answer)
    never, always = set(never), set(always)
    wrong = sorted(token for token in counts.keys() | always if not 0 <= token < vocab_size)
    if wrong:
        raise ValueError(f"answers: expected token ids from 0 to {vocab_size - 1}, got {wrong[:8]}")
    if always & never:
        raise ValueError(f"always: expected no token that `never` holds too, got {sorted(always & never)}")
    if not 0 < max(len(always), 1) <= most:
        raise ValueError(f"most: expected at least 1 and as many as `always` holds, got {most} for {len(always)}")
    ranked = sorted(counts.keys() - never - always, key=lambda token: (-counts[token], token))
    ids = tuple(sorted(always | set(ranked[: most - len(always)])))
    if not ids:
        raise ValueError("answers: expected at least one token to keep, got none")
    return ReducedVocabulary(ids, vocab_size, _share(ids, counts))


def share_of(ids: Iterable[int], answers: Iterable[Sequence[int]]) -> float:
    """Which share of the answers' tokens these are; 0 where there are none."""
    return _share(ids, Counter(token for answer in answers for token in answer))


def _share(ids: Iterable[int], counts: Counter[int]) -> float:
    return sum(counts[i] for i in ids) / max(counts.total(), 1)
