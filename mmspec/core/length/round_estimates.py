from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log, sqrt

_EARLY = 5  # comparisons whose median starts an estimate, since another process may delay a single sample
_PACE, _SETTLED = 0.3, 0.1  # step sizes of the pace and of an estimate
_FAR = 0.7  # the limit of a sample's deviation (as a log)
_SMOOTH = 4.0  # the weight, in samples, of a straight line through all lengths


@dataclass(slots=True)
class _CostEstimate:
    mean: float  # log-seconds relative to the pace
    rounds: int = 1
    compared: int = 1  # rounds that followed a round of another length
    early: list[float] = field(default_factory=list)  # the first samples among these


class RoundCosts:
    """Seconds of a round that drafts n values, relative to a pace common to all n. A busy machine and a growing context
    change all rounds alike, so only a round of another length than its predecessor compares lengths; a repeated length
    moves the pace, which `table` leaves out. `far` limits a comparison's deviation (as a log). An estimate starts as
    the median of `early` comparisons: more resist a busy neighbour, fewer follow a change."""

    def __init__(self, far: float = _FAR, early: int = _EARLY) -> None:
        self.far, self.early = far, early
        self.pace = 0.0
        self.measured: dict[int, _CostEstimate] = {}
        self._last: int | None = None
        self._table: list[float] = []

    def add(self, length: int, seconds: float) -> bool:
        """Return whether the round compares lengths."""
        sample = log(max(seconds, 1e-9)) - self.pace
        known, repeated = self.measured.get(length), length == self._last
        self._last = length
        if known is None:
            self.measured[length] = _CostEstimate(sample, early=[sample])
            self._table = []
            return True
        known.rounds += 1
        off = min(max(sample - known.mean, -_FAR), _FAR)
        # a repeat that is far faster shows that another process delayed the compared round, not that the machine is faster
        was_delayed = repeated and known.compared <= self.early and sample < known.early[-1] - _FAR
        if repeated and not was_delayed:
            self.pace += _PACE * off
            return False
        self._table = []
        if was_delayed:
            known.early[-1] = sample
            known.mean = _early_median(known.early)
            return True
        known.compared += 1
        if known.compared <= self.early:
            known.early.append(sample)
            known.mean = _early_median(known.early)
        else:
            known.mean += max(1 / known.compared, _SETTLED) * min(max(off, -self.far), self.far)
        return True

    def count(self, length: int) -> int:
        known = self.measured.get(length)
        return 0 if known is None else known.rounds

    def seconds(self, length: int) -> float:
        return exp(self.measured[length].mean + self.pace)

    @property
    def ready(self) -> bool:
        return 0 in self.measured and len(self.measured) > 1

    def paced(self, seconds: float) -> float:
        return seconds * exp(-self.pace)

    def table(self, deepest: int) -> list[float]:
        """Return the cost of 0..deepest values, shrunk towards a straight line except the first. Only if `ready`."""
        if len(self._table) != deepest + 1:
            plain = exp(self.measured[0].mean)
            seen = [(n, exp(e.mean), float(min(e.compared, 16))) for n, e in self.measured.items() if n]
            base, step = _fit_line(seen, plain)
            self._table = [plain, *(base + step * n for n in range(1, deepest + 1))]
            for n, seconds, weight in seen:
                if n <= deepest:
                    self._table[n] = (weight * seconds + _SMOOTH * self._table[n]) / (weight + _SMOOTH)
            # a draft never makes a round cheaper, whatever a noisy sample says
            self._table = [max(seconds, plain) for seconds in self._table]
        return self._table


def _early_median(samples: list[float]) -> float:
    """Return the lower median, since other processes delay a round and never shorten it."""
    return sorted(samples)[(len(samples) - 1) // 2]


def _fit_line(seen: list[tuple[int, float, float]], plain: float) -> tuple[float, float]:
    """Return intercept and slope (never falling); a single point gets a fixed part of one step."""
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


def shifted(share: float, shift: float) -> float:
    """Move a probability in log-odds; a shift of 0 leaves it as it is."""
    if not shift or not 0 < share < 1:
        return share
    return 1 / (1 + exp(-log(share / (1 - share)) - shift))


class AcceptanceModel:
    """The chance by depth that a drafted value is accepted given that all earlier values are; with forgetting. Three
    standard deviations of about ten tries discard the history of a depth. A rarely tried depth follows the depth above
    it."""

    window, recent, first = 0.99, 0.9, 0.6

    def __init__(self) -> None:
        self.hits: list[float] = []
        self.tries: list[float] = []
        self.latest: list[float] = []  # the same share over the last ten or so

    def add(self, accepted: int, drafted: int) -> None:
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
        self.hits = [0.5 * h for h in self.hits]
        self.tries = [0.5 * t for t in self.tries]

    def add_rounds(self, length: int, outcomes: list[int], drafted: int) -> None:
        for accepted in outcomes:
            self.add(accepted, drafted)

    def shares(self, deepest: int, hope: float = 0.0, shift: float = 0.0) -> list[float]:
        """Return chances given the depth before, raised by `hope` standard deviations and moved by `shift` log-odds."""
        share, known, shares = self.first, len(self.hits), []
        for depth in range(deepest):
            prior = 8.0 if depth else 2.0
            if depth < known:
                share = (self.hits[depth] + prior * share) / (self.tries[depth] + prior)
                prior += self.tries[depth]
            raised = min(share + hope * sqrt(share * (1 - share) / prior), 1.0) if hope else share
            shares.append(shifted(raised, shift))
        return shares

    def known(self) -> list[float]:
        return self.shares(len(self.hits))

    def tokens(self, deepest: int, hope: float = 0.0, shift: float = 0.0) -> list[float]:
        """Include the target's own value."""
        reach, total, sums = 1.0, 1.0, [1.0]
        for share in self.shares(deepest, hope, shift):
            reach *= share
            total += reach
            sums.append(total)
        return sums


class WindowAcceptanceModel:
    """The values per round of windows, by window length, with forgetting. The positions of a window settle round by
    round before they are verified, so each length has its own estimate. A rarely tried length follows its neighbours:
    values grow about as a power of the nodes of a pass, n + 1."""

    decay, prior, power, spread = 0.99, 12.0, 0.5, 0.9

    def __init__(self) -> None:
        self.yielded: dict[int, tuple[float, float]] = {}  # length -> values emitted, rounds

    def add_rounds(self, length: int, outcomes: list[int], drafted: int) -> None:
        values, rounds = self.yielded.get(length, (0.0, 0.0))
        for accepted in outcomes:
            values, rounds = self.decay * values + 1 + accepted, self.decay * rounds + 1
        self.yielded[length] = values, rounds

    def fade(self) -> None:
        self.yielded = {n: (0.5 * values, 0.5 * rounds) for n, (values, rounds) in self.yielded.items()}

    def tokens(self, deepest: int, hope: float = 0.0) -> list[float]:
        known = sorted((n, *self.yielded[n]) for n in self.yielded if n <= deepest)
        sums = [1.0]
        for length in range(1, deepest + 1):
            values, rounds = self.yielded.get(length, (0.0, 0.0))
            mean = (values + self.prior * self._beside(length, known)) / (rounds + self.prior)
            sums.append(mean * (1 + hope * self.spread / sqrt(rounds + 4)))
        return sums

    def _beside(self, length: int, known: list[tuple[int, float, float]]) -> float:
        below = [entry for entry in known if entry[0] < length][-1:]
        above = [entry for entry in known if entry[0] > length][:1]
        powers = [log(max(values / rounds, 1.0)) / log(n + 1) for n, values, rounds in below + above]
        return (length + 1) ** (sum(powers) / len(powers) if powers else self.power)

    def known(self) -> dict[int, float]:
        return {n: values / rounds for n, (values, rounds) in sorted(self.yielded.items())}
