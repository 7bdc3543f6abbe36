"""Acceptance curves: by position from a list or from records, or from a published accept length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mmspec.core.length.draft_estimates import missed_share
from mmspec.io.readers import read_json, read_json_lines


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """The acceptance probability of each drafted value, given that all values before it are accepted."""

    chances: tuple[float, ...]  # by position from the first drafted value; the last holds for all further
    source: str  # the origin of the numbers, in words
    beside: int = 0  # nodes of the drafts outside their longest path, 0 for chains

    def __post_init__(self) -> None:
        wrong = [chance for chance in self.chances if not 0 <= chance <= 1]
        if wrong or not self.chances:
            got = wrong[0] if wrong else "none"
            raise ValueError(f"--acceptance: expected chances from 0 to 1, a value per position, got {got}, correct it")

    def at(self, position: int) -> float:
        """Return the chance at a position, from 0."""
        return self.chances[min(position, len(self.chances) - 1)]

    def chain(self) -> AcceptanceCurve:
        """Return the curve of chains that corresponds to a curve of trees."""
        missed = 1 / missed_share(self.beside)
        chances = tuple(max(1 - missed * (1 - chance), 0.0) if chance else 0.0 for chance in self.chances)
        return AcceptanceCurve(chances, self.source)

    def tokens(self, length: int, nodes: int | None = None) -> float:
        """Return the expected values a round, the target's own included, for drafts of `length` levels; `nodes` are by
        default the curve's own. A larger tree misses less, as dynamic trees of trained drafters do."""
        beside = self.beside if nodes is None else max(nodes - length, 0)
        missed, chain = missed_share(beside), self.chain()
        reach = total = 1.0
        for position in range(length):
            chance = chain.at(position)
            reach *= 1 - missed * (1 - chance) if chance else 0.0
            total += reach
        return total


def curve_of_length(accept_length: float, length: int, source: str = "", nodes: int = 0) -> AcceptanceCurve:
    """Return the curve of equal chances that gives a published accept length, the target's own value included, for
    drafts of `length` levels and `nodes` nodes, 0 for chains."""
    if not 1 <= accept_length <= length + 1:
        raise ValueError(
            f"--accept-length: expected 1 to {length + 1} of drafts of {length} levels, got {accept_length:g}, change it or "
            "--length"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**n for n in range(length + 1)) < accept_length else (low, middle)
    words = f"accept length {accept_length:g} of drafts of {length} levels"
    return AcceptanceCurve((low,), f"{words}, {source}" if source else words, max(nodes - length, 0))


def curve_of_counts(accepted: Iterable[int], length: int, source: str) -> AcceptanceCurve:
    """Return the curve of rounds with these numbers of accepted values, for drafts of `length` levels."""
    rounds = [min(count, length) for count in accepted]
    tries = [sum(count >= position for count in rounds) for position in range(length + 1)]
    chances = [after / before for before, after in zip(tries, tries[1:], strict=False) if before]
    if not chances:
        raise ValueError(f"--bench: expected rounds with drafts in {source}, got none, name another file or row")
    return AcceptanceCurve(tuple(chances), source)


def read_bench(file: Path, row: str | None, length: int) -> AcceptanceCurve:
    """Return the curve of a row, for drafts of `length` levels. The file is the output of `mmspec bench --json`, whose
    rows have accept lengths. Or it holds records with the accepted values of every round (JSONL), which give the curve
    by position. `row` is a key or title; None where there is a single drafted row."""
    if file.suffix == ".jsonl":
        return _curve_of_records(file, row, length)
    rows = read_json(file).get("rows", [])
    drafted = [entry for entry in rows if (entry.get("accept_length") or 0) > 1]
    fitting = [entry for entry in drafted if row in (None, entry.get("key"), entry.get("method"))]
    names = list(dict.fromkeys(str(entry.get("key")) for entry in fitting or drafted))
    if not fitting or len(names) > 1:
        known = ", ".join(names) or "no drafted rows"
        raise ValueError(f"--row: expected one of {known} in {file}, got {row!r}, name one")
    lengths = [entry["accept_length"] for entry in fitting]
    words = f"{fitting[0]['method']} of {file.name}"
    return curve_of_length(sum(lengths) / len(lengths), length, words)


def _curve_of_records(file: Path, row: str | None, length: int) -> AcceptanceCurve:
    by_name: dict[str, list[int]] = {}
    for record in read_json_lines(file, torn=True):
        if not isinstance(record.get("accepted"), list):
            continue
        name = record.get("of", {}).get("decoding", "")
        counts = [count for count in record["accepted"][1:] if count is not None]
        if row in (None, name, record.get("title")):
            by_name.setdefault(name, []).extend(counts)
    drafted = {name: counts for name, counts in by_name.items() if any(counts)}
    if len(drafted) != 1:
        known = ", ".join(drafted) or "no drafted rows"
        raise ValueError(f"--row: expected one of {known} in {file}, got {row!r}, name one")
    ((name, counts),) = drafted.items()
    return curve_of_counts(counts, max(length, max(counts)), f"{name} of {file.name}")
