"""Prompt lookup decoding: drafts copy the continuation of an earlier occurrence of the last n-gram, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import torch

from mmspec.core.round.draft import Draft, Evidence, Law, Preview, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.core.round.tree import chain
from mmspec.io.validation import Size, check_fields
from mmspec.methods import method
from mmspec.vlm.target import TextTarget


@method(
    "lookup",
    domain="vlm",
    kind="drafter",
    title="prompt lookup",
    exact=True,
    order=20,
    drafts=("n-grams",),
    about="n-grams of the prompt and the text so far",
    paper="Prompt Lookup Decoding",
)
@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Chain drafts from n-gram matches, without a model ("Prompt Lookup Decoding", Saxena 2023).

    The last `max_ngram` tokens of a row (then fewer, down to `min_ngram`) are looked up in its prompt and answer. Up to
    `longest` tokens after their most recent occurrence become the draft. Ids of visual placeholders are never drafted.
    Deterministic, so exact with every exact rule for deterministic drafts.

    Args:
        longest: The most tokens of a draft.
        max_ngram: The longest n-gram that is looked up.
        min_ngram: The shortest n-gram that is looked up.
        doubling: Whether a match of n tokens copies at most 2^n, since the continuation of a short match is rarely
            right for long.

    Raises:
        ValueError: The arguments violate 1 <= min_ngram <= max_ngram or longest >= 1.
    """

    longest: Size = 5
    max_ngram: int = 3
    min_ngram: Size = 1
    doubling: bool = False

    name = "prompt_lookup"
    from_ids = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram: expected 1 to max_ngram={self.max_ngram}, got {self.min_ngram}")

    def open(self, target: TextTarget) -> LookupState:
        return LookupState(self, target)


class NgramIndex:
    """The ends of each n-gram in a growing row of ids. Ids in `barred` are neither matched nor copied."""

    def __init__(self, settings: PromptLookup, barred: frozenset[int], vocab_size: int):
        self.sizes = range(settings.max_ngram, settings.min_ngram - 1, -1)
        self.barred, self.vocab_size = barred, vocab_size
        self.ids: list[int] = []
        self.ends: dict[tuple[int, ...], list[int]] = {}
        self.clean = 0  # the first position behind the last barred id

    def extend(self, ids: list[int]) -> None:
        """Append ids. An n-gram is indexed once a token follows it, so the end of the row never matches itself."""
        for token in ids:
            self._index_end()
            self.ids.append(token)
            if self._bars(token):
                self.clean = len(self.ids)

    def _bars(self, token: int) -> bool:
        return token in self.barred or token >= self.vocab_size

    def _index_end(self) -> None:
        end = len(self.ids)
        for size in self.sizes:
            if end - size >= self.clean:
                self.ends.setdefault(tuple(self.ids[end - size :]), []).append(end)

    def drop(self, count: int) -> None:
        """Remove the last `count` ids, none of which is barred."""
        for end in range(len(self.ids) - 1, len(self.ids) - 1 - count, -1):
            self.ids.pop()
            for size in self.sizes:
                if end - size >= self.clean:
                    self.ends[tuple(self.ids[end - size :])].pop()

    def continuation(self, longest: int) -> list[int]:
        """Return up to `longest` ids that followed the last occurrence of the longest suffix that occurred before."""
        start = self.match()
        return [] if start is None else self._copied(start, longest)

    def continuations(self, longest: int, count: int) -> list[list[int]]:
        """Return up to `count` different continuations of that suffix, the latest first."""
        start, end = self.match(), len(self.ids)
        if start is None:
            return []
        copies: list[list[int]] = []
        for size in self.sizes:
            starts = self.ends.get(tuple(self.ids[end - size :]), ()) if end - size >= self.clean else ()
            if starts and starts[-1] == start:
                for place in reversed(starts[-8 * count :]):
                    path = self._copied(place, longest)
                    if path and path not in copies and len(copies) < count:
                        copies.append(path)
                break
        return copies

    def _copied(self, start: int, longest: int) -> list[int]:
        return list(takewhile(lambda token: not self._bars(token), self.ids[start : start + longest]))

    def match(self) -> int | None:
        """Return the end of that occurrence, which is the first id to copy; None without a match."""
        end = len(self.ids)
        for size in self.sizes:
            starts = self.ends.get(tuple(self.ids[end - size :])) if end - size >= self.clean else None
            if starts and not self._bars(self.ids[starts[-1]]):
                return starts[-1]
        return None

    def matched(self, most: int) -> int:
        """Return the number of ids before the match that equal those at the end, at most `most`; 0 without a match."""
        start, end, same = self.match(), len(self.ids), 0
        if start is None:
            return 0
        while same < min(most, start, end - self.clean) and self.ids[start - 1 - same] == self.ids[end - 1 - same]:
            same += 1
        return same


class LookupState:
    """An index per row. Prompt and answer are read before a draft, so rounds may be skipped."""

    passes, may_miss = 0, True

    def __init__(self, drafter: PromptLookup, target: TextTarget):
        self.deepest, self.doubling = drafter.longest, drafter.doubling
        barred = frozenset(target.parts.placeholders)
        self.rows = [NgramIndex(drafter, barred, target.parts.vocab_size) for _ in range(target.batch)]
        self.taken: list[int] | None = None

    def _read(self, target: TextTarget) -> None:
        if self.taken is None:
            seen = torch.ones_like(target.prompt, dtype=torch.bool) if target.padding is None else ~target.padding
            for index, ids, keep in zip(self.rows, target.prompt, seen, strict=True):
                index.extend(ids[keep].tolist())
            self.taken = [0] * target.batch
        for row, tokens in enumerate(target.tokens):
            self.rows[row].extend(tokens[self.taken[row] :])
            self.taken[row] = len(tokens)

    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        runs = self.continuations(target, longest)
        longest = max(map(len, runs))
        if longest == 0:
            return root_only(target.pending)
        device = target.device
        padded = torch.tensor([run + [0] * (longest - len(run)) for run in runs], device=device)
        lengths = torch.tensor([len(run) for run in runs], device=device)
        value = torch.cat([target.pending[:, None], padded], 1)
        valid = torch.arange(longest + 1, device=device) <= lengths[:, None]
        return Draft(value, chain(longest, device), Law("deterministic"), valid)

    def continuations(self, target: TextTarget, longest: int | None = None) -> list[list[int]]:
        rooms = self._rooms(target, longest)
        return [index.continuation(room) if room else [] for index, room in zip(self.rows, rooms, strict=True)]

    def branches(self, target: TextTarget, count: int, longest: int | None = None) -> list[list[list[int]]]:
        rooms = self._rooms(target, longest)
        return [index.continuations(room, count) if room else [] for index, room in zip(self.rows, rooms, strict=True)]

    def _rooms(self, target: TextTarget, longest: int | None) -> list[int]:
        self._read(target)
        rooms = target.rooms(self.deepest if longest is None else min(longest, self.deepest))
        if self.doubling:
            matched = self.matched(self.deepest.bit_length())
            rooms = [room and min(room, 1 << n) for room, n in zip(rooms, matched, strict=True)]
        return rooms

    def matched(self, most: int) -> list[int]:
        return [index.matched(most) for index in self.rows]

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Do nothing: the target's tokens are read before a draft."""

    def retract(self, counts: list[int]) -> None:
        for row, count in enumerate(counts if self.taken is not None else ()):
            self.rows[row].drop(max(self.taken[row] - count, 0))
            self.taken[row] = min(self.taken[row], count)

    def preview(self, target: TextTarget) -> list[Preview | None]:
        runs = self.continuations(target)
        return [
            Preview(("match", index.matched(index.sizes.start)), run) if run else None
            for index, run in zip(self.rows, runs, strict=True)
        ]
