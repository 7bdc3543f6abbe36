"""Suffix lookup: trees of the continuations of the longest earlier occurrence of the text's end, without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.io.validation import Range, Size, check_fields
from mmspec.methods import method
from mmspec.vlm.drafters.base.likeliest_paths import LikeliestPaths, draft_of_paths
from mmspec.vlm.target import TextTarget

_BREAK = -1  # stands between texts, and for placeholders of pictures
_LINKS = 256  # the suffixes of a new token that are counted: all of them, except in long runs of a single token


@dataclass(slots=True)
class _Place:
    """A set of substrings with the same continuations: a state of a suffix automaton."""

    length: int  # of its longest substring
    link: _Place | None = None  # of the longest suffix that has further continuations; None at the root
    after: dict[int, _Place] = field(default_factory=dict)  # the places behind each next token
    count: int = 0  # the occurrences so far


class SuffixIndex:
    """All substrings of texts with the counts of their continuations, in a suffix automaton that grows by tokens.

    Requests whose drafters hold the same index read each other's answers, from the end of a request on. It belongs to
    one user: its drafts reveal earlier answers.
    """

    def __init__(self) -> None:
        self.root = self.last = _Place(0)
        self.unread: list[list[int]] = []
        self.ended = True

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the last text; -1 ends it."""
        for token in tokens:
            if token != _BREAK or not self.ended:
                self._append(token)
            self.ended = token == _BREAK

    def _append(self, token: int) -> None:
        new, at = _Place(self.last.length + 1), self.last
        while at is not None and token not in at.after:
            at.after[token] = new
            at = at.link
        new.link = self.root if at is None else self._before(at, token)
        self.last, suffix = new, new
        for _ in range(_LINKS):
            if suffix is self.root:
                break
            suffix.count += 1
            suffix = suffix.link

    def _before(self, at: _Place, token: int) -> _Place:
        """Return the place of the substrings ending in `token` behind `at`, split off where longer substrings share it."""
        known = at.after[token]
        if known.length == at.length + 1:
            return known
        part = _Place(at.length + 1, known.link, dict(known.after), known.count)
        known.link = part
        while at is not None and at.after.get(token) is known:
            at.after[token] = part
            at = at.link
        return part

    def read_answers(self) -> None:
        """Append the answers of all requests that were opened before, as far as they have come."""
        for answer in self.unread:
            self.extend([*answer, _BREAK])
        self.unread = []


@dataclass(slots=True)
class _Match:
    """The longest suffix of a growing text that occurs in an index."""

    index: SuffixIndex
    place: _Place
    length: int = 0

    def read(self, token: int) -> None:
        self._settle()
        while self.place.link is not None and token not in self.place.after:
            self.place = self.place.link
            self.length = self.place.length
        if token == _BREAK or token not in self.place.after:
            self.place, self.length = self.index.root, 0
        else:
            self.place, self.length = self.place.after[token], self.length + 1

    def _settle(self) -> None:
        """Move to the place that the index has split off for the matched suffix since the last call."""
        while self.place.link is not None and self.place.link.length >= self.length:
            self.place = self.place.link

    def continued(self) -> tuple[_Place, int]:
        """Return the place of the longest suffix that has a continuation, and its length; 0 where there is none."""
        self._settle()
        place, length = self.place, self.length
        while place.link is not None and not any(token != _BREAK for token in place.after):
            place = place.link
            length = place.length
        return place, length


@method(
    "suffix",
    domain="vlm",
    kind="drafter",
    title="suffix lookup",
    exact=True,
    order=26,
    drafts=("dynamic tree",),
    about="continuations of the longest earlier occurrence of the text's end",
    paper="SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications",
)
@dataclass(frozen=True, slots=True)
class SuffixLookup:
    """Trees of continuations of the longest earlier occurrence of the text's end, without a model. Deterministic, so exact.

    Paper: "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications". All suffixes of the prompt and of
    the answer so far are indexed, and those of earlier answers with an index. The likeliest continuations by count form
    the tree. Where both match, the longer match is continued. Ids of visual placeholders are never drafted.

    Args:
        nodes: The most drafted nodes.
        depth: The most levels.
        least: The least cumulative share of a node among the continuations.
        shortest: The length of the shortest match that is continued.
        doubling: Whether a match of n tokens is continued by at most 2^n levels, see `PromptLookup`.
        index: None looks up a row's own text only; all requests of this drafter share a SuffixIndex.

    Raises:
        ValueError: A number is out of range.
    """

    nodes: Size = 8
    depth: Size = 8
    least: Annotated[float, Range(0, below=1)] = 0.05
    shortest: Size = 1
    doubling: bool = False
    index: SuffixIndex | None = None

    name = "suffix_lookup"
    from_ids = True

    __post_init__ = check_fields

    def open(self, target: TextTarget) -> SuffixState:
        return SuffixState(self, target)


class SuffixState:
    """Per row an index of its own text, and its matches there and in the shared index. Rounds may be skipped."""

    passes, may_miss = 0, True

    def __init__(self, drafter: SuffixLookup, target: TextTarget):
        self.drafter, self.deepest = drafter, drafter.depth
        self.barred, self.vocab_size = frozenset(target.parts.placeholders), target.parts.vocab_size
        shared = drafter.index
        if shared is not None:
            shared.read_answers()
            shared.unread += target.tokens
        seen = [slice(None)] * target.batch if target.padding is None else ~target.padding
        self.own, self.matches, self.taken = [], [], [0] * target.batch
        for ids, keep in zip(target.prompt, seen, strict=True):
            own = SuffixIndex()
            self.own.append(own)
            self.matches.append([_Match(index, index.root) for index in (own, shared) if index is not None])
            self._read(len(self.own) - 1, ids[keep].tolist())

    def _read(self, row: int, tokens: Sequence[int]) -> None:
        for token in tokens:
            token = _BREAK if token in self.barred or token >= self.vocab_size else token
            for match in self.matches[row]:
                match.read(token)
            self.own[row].extend([token])

    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        return draft_of_paths(target, self._trees(target, longest))

    def _trees(self, target: TextTarget, longest: int | None) -> list[LikeliestPaths]:
        trees, settings = [], self.drafter
        for row, room in enumerate(target.rooms(self.deepest if longest is None else min(longest, self.deepest))):
            self._read(row, target.tokens[row][self.taken[row] :])
            self.taken[row] = len(target.tokens[row])
            place, length = self._longest(row)
            room = min(room, 1 << min(length, self.deepest)) if settings.doubling else room
            tree = LikeliestPaths(settings.nodes, room, settings.least)
            trees.append(tree.grow(place, _continuations) if length >= settings.shortest else tree)
        return trees

    def _longest(self, row: int) -> tuple[_Place, int]:
        return max((match.continued() for match in self.matches[row]), key=lambda found: found[1])

    def branches(self, target: TextTarget, count: int, longest: int | None = None) -> list[list[list[int]]]:
        """Return up to `count` paths of every row's tree, the likeliest first, of at most `longest` tokens."""
        return [tree.paths()[:count] for tree in self._trees(target, longest)]

    def continuations(self, target: TextTarget, longest: int | None = None) -> list[list[int]]:
        return [paths[0] if paths else [] for paths in self.branches(target, 1, longest)]

    def matched(self, most: int) -> list[int]:
        return [min(self._longest(row)[1], most) for row in range(len(self.matches))]

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Do nothing: the target's tokens are read before a draft."""


def _continuations(place: _Place) -> Iterator[tuple[int, float, _Place]]:
    total = sum(behind.count for behind in place.after.values())
    for token, behind in sorted(place.after.items(), key=lambda pair: -pair[1].count):
        if token != _BREAK:
            yield token, behind.count / total, behind
