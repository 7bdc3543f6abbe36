"""Running estimates of a round by its draft length: what it costs, and how many drafted values are accepted."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log, sqrt

_EARLY = 5  # comparisons whose median starts an estimate: a single one may have met another process
_PACE, _SETTLED = 0.3, 0.1  # gains of the pace and of an estimate
_FAR = 0.7  # a sample further off than this (as a log) counts as this far
_SMOOTH = 4.0  # samples a straight line through all lengths is worth


@dataclass(slots=True)
class _CostEstimate:
    """mean: log-seconds over the pace.   rounds: seen.   compared: of them, those behind a round of another length;
    `early` holds the first ones."""

    mean: float
    rounds: int = 1
    compared: int = 1
    early: list[float] = field(default_factory=list)


class RoundCosts:
    """Seconds of a round that drafts n values, relative to a pace common to all n.

    A busy machine and a growing context change all rounds alike. So only a round of another length than the one before it
    tells how lengths compare; rounds that follow their like move the pace. Lengths measured long ago stay comparable, and
    only ratios matter to a choice: `table` leaves the pace out.

    far: how far off a comparison counts once an estimate rests on several, as a log.
    """

    def __init__(self, far: float = _FAR) -> None:
        self.far = far
        self.pace = 0.0
        self.measured: dict[int, _CostEstimate] = {}
        self._last: int | None = None
        self._table: list[float] = []

    def add(self, length: int, seconds: float) -> bool:
        """One round that drafted `length` values (0: none). Returns whether it tells how lengths compare."""
        sample = log(max(seconds, 1e-9)) - self.pace
        known, repeated = self.measured.get(length), length == self._last
        self._last = length
        if known is None:
            self.measured[length] = _CostEstimate(sample, early=[sample])
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
            known.mean += max(1 / known.compared, _SETTLED) * min(max(off, -self.far), self.far)
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
            base, step = _fit_line(seen, plain)
            self._table = [plain, *(base + step * n for n in range(1, deepest + 1))]
            for n, seconds, weight in seen:
                if n <= deepest:
                    self._table[n] = (weight * seconds + _SMOOTH * self._table[n]) / (weight + _SMOOTH)
            # whatever noise says: a draft never makes a round cheaper
            self._table = [max(seconds, plain) for seconds in self._table]
        return self._table


def _fit_line(seen: list[tuple[int, float, float]], plain: float) -> tuple[float, float]:
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


class AcceptanceModel:
    """How often a drafted value is accepted once all before it are, by depth; with forgetting.

    A sudden change (three standard deviations of the last ten or so) throws away what was known of that depth. A depth
    that was rarely tried takes after the one above it.
    """

    window, recent, first = 0.99, 0.9, 0.6

    def __init__(self) -> None:
        self.hits: list[float] = []
        self.tries: list[float] = []
        self.latest: list[float] = []  # the same share over the last ten or so

    def add(self, accepted: int, drafted: int) -> None:
        """One row's outcome: `accepted` of a draft of up to `drafted` levels."""
        for depth in range(min(accepted + 1, drafted)):
            if depth == len(self.hits):
                self.hits.append(0.0)
                self.tries.append(0.0)
                self.latest.append(self.first)
            hit = 1.0 if depth < accepted else 0.0
            self.hits[depth] = self.window * self.hits[depth] + hit
            self.tries[depth] = self.window * self.tries[depth] + 1
            self.latest[depth] += (1 - self.recent) * (hit - self.latest[depth])
            self._forget_if_changed(depth)

    def _forget_if_changed(self, depth: int) -> None:
        tries, latest = self.tries[depth], self.latest[depth]
        share = self.hits[depth] / tries
        spread = sqrt(max(share * (1 - share), 0.02) * (1 - self.recent) / (1 + self.recent))
        if tries > 20 and abs(latest - share) > 3 * spread + 0.05:
            self.hits[depth], self.tries[depth] = 10 * latest, 10.0

    def fade(self) -> None:
        """Halves the weight of all that is known: it is old."""
        self.hits = [0.5 * h for h in self.hits]
        self.tries = [0.5 * t for t in self.tries]

    def settled(self, length: int, outcomes: list[int], drafted: int) -> None:
        """One round's outcomes of all rows that count; `length` as it was asked for, `drafted` levels deep."""
        for accepted in outcomes:
            self.add(accepted, drafted)

    def shares(self, deepest: int, hope: float = 0.0) -> list[float]:
        """The chance of depth 1..deepest, given the depth before; `hope` standard deviations above what is likeliest."""
        share, known, found = self.first, len(self.hits), []
        for depth in range(deepest):
            prior = 8.0 if depth else 2.0
            if depth < known:
                share = (self.hits[depth] + prior * share) / (self.tries[depth] + prior)
                prior += self.tries[depth]
            found.append(min(share + hope * sqrt(share * (1 - share) / prior), 1.0) if hope else share)
        return found

    def known(self) -> list[float]:
        """`shares` of all depths that were tried."""
        return self.shares(len(self.hits))

    def tokens(self, deepest: int, hope: float = 0.0) -> list[float]:
        """Values a row emits per round with drafts of 0..deepest levels, the target's own included; see `shares`."""
        reach, total, sums = 1.0, 1.0, [1.0]
        for share in self.shares(deepest, hope):
            reach *= share
            total += reach
            sums.append(total)
        return sums


class WindowAcceptanceModel:
    """What windows yield, by their length: their positions settle round by round before they are judged, so what a depth
    yields depends on the whole length, and lengths are told apart by what each yielded itself, with forgetting.

    A length that was rarely tried takes after those beside it: the values of a round grow about as a power of the values
    of a pass, n + 1.
    """

    kept, prior, power, spread = 0.99, 12.0, 0.5, 0.9

    def __init__(self) -> None:
        self.yielded: dict[int, tuple[float, float]] = {}  # length -> values emitted, rounds

    def settled(self, length: int, outcomes: list[int], drafted: int) -> None:
        """As of a `AcceptanceModel`."""
        values, rounds = self.yielded.get(length, (0.0, 0.0))
        for accepted in outcomes:
            values, rounds = self.kept * values + 1 + accepted, self.kept * rounds + 1
        self.yielded[length] = values, rounds

    def fade(self) -> None:
        """As of a `AcceptanceModel`."""
        self.yielded = {n: (0.5 * values, 0.5 * rounds) for n, (values, rounds) in self.yielded.items()}

    def tokens(self, deepest: int, hope: float = 0.0) -> list[float]:
        """As of a `AcceptanceModel`: values a row emits per round with windows of 0..deepest drafts."""
        known = sorted((n, *self.yielded[n]) for n in self.yielded if n <= deepest)
        sums = [1.0]
        for length in range(1, deepest + 1):
            values, rounds = self.yielded.get(length, (0.0, 0.0))
            mean = (values + self.prior * self._beside(length, known)) / (rounds + self.prior)
            sums.append(mean * (1 + hope * self.spread / sqrt(rounds + 4)))
        return sums

    def _beside(self, length: int, known: list[tuple[int, float, float]]) -> float:
        """What the next shorter and the next longer measured length say of this one."""
        below = [one for one in known if one[0] < length][-1:]
        above = [one for one in known if one[0] > length][:1]
        powers = [log(max(values / rounds, 1.0)) / log(n + 1) for n, values, rounds in below + above]
        return (length + 1) ** (sum(powers) / len(powers) if powers else self.power)

    def known(self) -> dict[int, float]:
        """Values of a round by measured length."""
        return {n: values / rounds for n, (values, rounds) in sorted(self.yielded.items())}
