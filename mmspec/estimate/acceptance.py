"""How often drafted values are accepted: by position from a list or from records, or a published accept length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mmspec.core.draft_estimates import missed_share
from mmspec.io.readers import read_json, read_json_lines


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """The chance of each drafted value, given that all before it are accepted.

    Attributes:
        chances: By position, from the first drafted value on; the last chance holds for all further positions.
        source: Where it is from, in words.
        beside: Nodes of the drafts beside their longest path, 0 for chains.
    """

    chances: tuple[float, ...]
    source: str
    beside: int = 0

    def __post_init__(self) -> None:
        wrong = [one for one in self.chances if not 0 <= one <= 1]
        if wrong or not self.chances:
            got = wrong[0] if wrong else "none"
            raise ValueError(f"--acceptance: expected chances from 0 to 1, a value a position, got {got}, correct it")

    def at(self, position: int) -> float:
        """The chance at a position, from 0."""
        return self.chances[min(position, len(self.chances) - 1)]

    def chain(self) -> AcceptanceCurve:
        """Return the curve of chains from a curve of trees."""
        missed = 1 / missed_share(self.beside)
        chances = tuple(max(1 - missed * (1 - one), 0.0) if one else 0.0 for one in self.chances)
        return AcceptanceCurve(chances, self.source)

    def tokens(self, length: int, nodes: int | None = None) -> float:
        """Values a round, the target's own included.

        Args:
            length: Levels of the draft.
            nodes: Of the draft; those of the curve's own drafts, if left out. A larger tree misses less, as dynamic trees
                of trained drafters do.
        """
        beside = self.beside if nodes is None else max(nodes - length, 0)
        missed, chain = missed_share(beside), self.chain()
        reach = total = 1.0
        for position in range(length):
            chance = chain.at(position)
            reach *= 1 - missed * (1 - chance) if chance else 0.0
            total += reach
        return total


def curve_of_length(accept_length: float, length: int, source: str = "", nodes: int = 0) -> AcceptanceCurve:
    """The curve of equal chances whose drafts of `length` levels give a published accept length.

    Args:
        accept_length: Values a target pass, the target's own included.
        length: Levels of those drafts.
        source: The paper or table it is from.
        nodes: Of those drafts, 0 for chains.

    Raises:
        ValueError: No such draft has this accept length.
    """
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
    """The curve of rounds that accepted so many of `length` drafted values.

    Args:
        accepted: Of every round.
        length: Levels of the drafts.
        source: Where the counts are from.

    Raises:
        ValueError: There is no round.
    """
    rounds = [min(one, length) for one in accepted]
    tries = [sum(one >= position for one in rounds) for position in range(length + 1)]
    chances = [after / before for before, after in zip(tries, tries[1:], strict=False) if before]
    if not chances:
        raise ValueError(f"--bench: expected rounds with drafts in {source}, got none, name another file or row")
    return AcceptanceCurve(tuple(chances), source)


def read_bench(file: Path, row: str | None, length: int) -> AcceptanceCurve:
    """The curve of a bench file's row, or of the records of a run.

    Args:
        file: The JSON of `mmspec bench --json`, whose rows have accept lengths; or records with the accepted values of every
            round (JSONL), which give the curve by position.
        row: Its key or title; None for the only drafted row.
        length: Levels of its drafts.

    Raises:
        ValueError: The file is no such file, or the row is not there or ambiguous.
    """
    if file.suffix == ".jsonl":
        return _curve_of_records(file, row, length)
    rows = read_json(file).get("rows", [])
    drafted = [one for one in rows if (one.get("accept_length") or 0) > 1]
    fitting = [one for one in drafted if row in (None, one.get("key"), one.get("method"))]
    names = list(dict.fromkeys(str(one.get("key")) for one in fitting or drafted))
    if not fitting or len(names) > 1:
        known = ", ".join(names) or "no drafted rows"
        raise ValueError(f"--row: expected one of {known} in {file}, got {row!r}, name one")
    lengths = [one["accept_length"] for one in fitting]
    words = f"{fitting[0]['method']} of {file.name}"
    return curve_of_length(sum(lengths) / len(lengths), length, words)


def _curve_of_records(file: Path, row: str | None, length: int) -> AcceptanceCurve:
    counts_by_name: dict[str, list[int]] = {}
    for record in read_json_lines(file, torn=True):
        if not isinstance(record.get("accepted"), list):
            continue
        name = record.get("of", {}).get("decoding", "")
        counts = [one for one in record["accepted"][1:] if one is not None]
        if row in (None, name, record.get("title")):
            counts_by_name.setdefault(name, []).extend(counts)
    drafted = {name: counts for name, counts in counts_by_name.items() if any(counts)}
    if len(drafted) != 1:
        known = ", ".join(drafted) or "no drafted rows"
        raise ValueError(f"--row: expected one of {known} in {file}, got {row!r}, name one")
    ((name, counts),) = drafted.items()
    return curve_of_counts(counts, max(length, max(counts)), f"{name} of {file.name}")
