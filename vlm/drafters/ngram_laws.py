"""Tables from n-grams to the target's distributions after them, and the requests that fill and read them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from mmspec.core.drafting.stored_laws import Ngram, NgramLaws, likeliest
from mmspec.core.round.draft import Draft, Evidence, Verdict, learnable_nodes
from mmspec.io.validation import whole
from mmspec.vlm.target import TextTarget


class TableSettings(Protocol):
    max_ngram: int
    min_ngram: int
    width: int
    table: LawTable | None


class LawTable:
    """A table of distributions after n-grams. Requests that use the same table share the target's earlier distributions.

    Requests of other temperatures, other truncations or other logits processors have other distributions, so the table
    holds a part for each combination. It belongs to one user and one model: its drafts reveal earlier answers.

    Args:
        max_ngram: The longest n-gram.
        min_ngram: The shortest n-gram.
        width: The tokens that are stored for an n-gram.
        most: The n-grams that a part holds; beyond them the oldest are forgotten. An n-gram takes about a kilobyte.

    Raises:
        ValueError: The arguments violate 1 <= min_ngram <= max_ngram, or another number is below 1.
    """

    def __init__(self, max_ngram: int = 4, min_ngram: int = 1, width: int = 10, most: int = 100_000):
        names = ("max_ngram", "min_ngram", "width", "most")
        max_ngram, min_ngram, width, most = map(whole, names, (max_ngram, min_ngram, width, most))
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"min_ngram: expected 1 to max_ngram={max_ngram}, got {min_ngram}")
        if min(width, most) < 1:
            raise ValueError(f"width, most: expected at least 1, got {width} and {most}")
        self.sizes = (max_ngram, min_ngram, width)
        self.most = most
        self.vocab_size: int | None = None
        self.parts: dict[Hashable, NgramLaws] = {}

    def part(self, target: TextTarget) -> NgramLaws:
        """Return the part for the settings of a request."""
        self.vocab_size = self.vocab_size or target.parts.vocab_size
        if self.vocab_size != target.parts.vocab_size:
            raise ValueError(
                f"table: expected a model of vocabulary {self.vocab_size}, got {target.parts.vocab_size}; "
                "use one table per model"
            )
        return self.parts.setdefault(_settings(target), NgramLaws(*self.sizes, self.most))


def _settings(target: TextTarget) -> Hashable:
    processors = []
    for processor in target.processors.all:
        numbers = ((name, value) for name, value in vars(processor).items() if isinstance(value, int | float))
        processors.append((type(processor).__name__, *sorted(numbers)))
    return target.greedy, *processors


def sizes_of(drafter: TableSettings) -> tuple[int, int, int]:
    sizes = (drafter.max_ngram, drafter.min_ngram, drafter.width)
    table = LawTable(*sizes) if drafter.table is None else drafter.table
    if not isinstance(table, LawTable):
        raise ValueError(f"table: expected a LawTable, got {table!r:.60}; leave it out for an empty one")
    if table.sizes != sizes:
        raise ValueError(f"table: expected max_ngram, min_ngram, width of {sizes}, got {table.sizes}; use its sizes")
    return sizes


class NgramLawState:
    """Reads the text and fills `laws`, a table per row or a shared table. Skipped rounds only leave the table smaller."""

    passes, may_miss = 0, True

    def __init__(self, table: LawTable | None, sizes: tuple[int, int, int], target: TextTarget):
        own = [LawTable(*sizes) if table is None else table for _ in range(target.batch)]
        self.laws = [table.part(target) for table in own]
        self.barred = frozenset(target.parts.placeholders)
        self.reach = sizes[0]
        seen = [slice(None)] * target.batch if target.padding is None else ~target.padding
        self.prompts = [
            self.tail(ids[keep][-self.reach :].tolist()) for ids, keep in zip(target.prompt, seen, strict=True)
        ]

    def tail(self, ids: Sequence[int]) -> Ngram:
        """Return the last tokens that n-grams can use: those behind the last placeholder of a picture."""
        start = max((place + 1 for place, token in enumerate(ids) if token in self.barred), default=0)
        return tuple(ids[max(start, len(ids) - self.reach) :])

    def text(self, target: TextTarget, row: int, without: int = 0) -> Ngram:
        tokens = target.tokens[row]
        end = len(tokens) - without
        return self.tail((*self.prompts[row], *tokens[max(end - self.reach, 0) : end]))

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Store the distribution at every scored node of rows that go on, at rejected nodes too."""
        nodes = learnable_nodes(draft, evidence, target.live).tolist()
        ids, mass = (x.tolist() for x in likeliest(evidence.scores, self.laws[0].width))
        parents, values = draft.tree.parent.expand(draft.batch, -1).tolist(), draft.value.tolist()
        for row, depth in enumerate(verdict.depth.tolist()):
            if not target.live[row]:
                continue
            texts = [self.text(target, row, depth + 1)]
            for parent, token in zip(parents[row][1:], values[row][1:], strict=True):
                texts.append(self.tail((*texts[parent], token)))
            for node, text in enumerate(texts):
                known = [pair for pair in zip(ids[row][node], mass[row][node], strict=True) if self._storable(*pair)]
                if nodes[row][node] and text and known:
                    self.laws[row].store(text, *zip(*known, strict=True))

    def _storable(self, token: int, mass: float) -> bool:
        return mass > 0 and token not in self.barred
