"""What a round costs, by how many values it drafts: running estimates from measured rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log

_EARLY = 5  # comparisons whose median starts an estimate: a single one may have met another process
_PACE, _SETTLED = 0.3, 0.1  # gains of the pace and of an estimate
_FAR = 0.7  # a sample further off than this (as a log) counts as this far
_SMOOTH = 4.0  # samples a straight line through all lengths is worth


@dataclass(slots=True)
class _Estimate:
    """mean: log-seconds over the pace.   rounds: seen.   compared: of them, those behind a round of another length;
    `early` holds the first ones."""

    mean: float
    rounds: int = 1
    compared: int = 1
    early: list[float] = field(default_factory=list)


class Costs:
    """Seconds of a round that drafts n values, relative to a pace common to all n.

    A busy machine and a growing context change all rounds alike. So only a round of another length than the one before it
    tells how lengths compare; rounds that follow their like move the pace. Lengths measured long ago stay comparable, and
    only ratios matter to a choice: `table` leaves the pace out.
    """

    def __init__(self) -> None:
        self.pace = 0.0
        self.measured: dict[int, _Estimate] = {}
        self._last: int | None = None
        self._table: list[float] = []

    def add(self, length: int, seconds: float) -> bool:
        """One round that drafted `length` values (0: none). Returns whether it tells how lengths compare."""
        sample = log(max(seconds, 1e-9)) - self.pace
        known, repeated = self.measured.get(length), length == self._last
        self._last = length
        if known is None:
            self.measured[length] = _Estimate(sample, early=[sample])
            self._table = []
            return True
        known.rounds += 1
        off = min(max(sample - known.mean, -_FAR), _FAR)
        if repeated:
            self.pace += _PACE * off
            return False
        self._table = []
        known.compared += 1
        if known.compared <= _EARLY:
            known.early.append(sample)
            known.mean = sorted(known.early)[(known.compared - 1) // 2]
        else:
            known.mean += max(1 / known.compared, _SETTLED) * off
        return True

    def count(self, length: int) -> int:
        """Rounds measured at this length."""
        known = self.measured.get(length)
        return 0 if known is None else known.rounds

    def seconds(self, length: int) -> float:
        """What a measured length takes at the present pace."""
        return exp(self.measured[length].mean + self.pace)

    @property
    def ready(self) -> bool:
        """Whether rounds with and without a draft have been measured."""
        return 0 in self.measured and len(self.measured) > 1

    def paced(self, seconds: float) -> float:
        """Seconds of now in the table's unit."""
        return seconds * exp(-self.pace)

    def table(self, deepest: int) -> list[float]:
        """The cost of n = 0..deepest values; all but 0 drawn towards one straight line, which also fills the gaps.

        Only where `ready`.
        """
        if len(self._table) != deepest + 1:
            plain = exp(self.measured[0].mean)
            seen = [(n, exp(e.mean), float(min(e.compared, 16))) for n, e in self.measured.items() if n]
            base, step = _line(seen, plain)
            self._table = [plain, *(base + step * n for n in range(1, deepest + 1))]
            for n, seconds, weight in seen:
                if n <= deepest:
                    self._table[n] = (weight * seconds + _SMOOTH * self._table[n]) / (weight + _SMOOTH)
            # whatever noise says: a draft never makes a round cheaper
            self._table = [max(seconds, plain) for seconds in self._table]
        return self._table


def _line(seen: list[tuple[int, float, float]], plain: float) -> tuple[float, float]:
    """Intercept and slope (never falling) of a weighted fit; one point alone is taken to have a fixed part of one step."""
    weight = sum(w for _, _, w in seen)
    middle = sum(w * n for n, _, w in seen) / weight
    height = sum(w * s for _, s, w in seen) / weight
    spread = sum(w * (n - middle) ** 2 for n, _, w in seen)
    if spread:
        step = sum(w * (n - middle) * (s - height) for n, s, w in seen) / spread
    else:
        step = (height - plain) / (middle + 1)
    step = max(step, 0.0)
    return height - step * middle, step
