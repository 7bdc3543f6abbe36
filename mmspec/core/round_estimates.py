"""Running estimates of a round by draft length: its cost, and the number of accepted values."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log, sqrt

_EARLY = 5  # comparisons whose median starts an estimate, since another process may delay a single sample
_PACE, _SETTLED = 0.3, 0.1  # step sizes of the pace and of an estimate
_FAR = 0.7  # the limit of a sample's deviation (as a log)
_SMOOTH = 4.0  # the weight, in samples, of a straight line through all lengths


@dataclass(slots=True)
class _CostEstimate:
    """The cost estimate of a length.

    Attributes:
        mean: The log-seconds relative to the pace.
        rounds: The number of rounds.
        compared: The rounds that followed a round of another length.
        early: The first samples among these.
    """

    mean: float
    rounds: int = 1
    compared: int = 1
    early: list[float] = field(default_factory=list)


class RoundCosts:
    """Seconds of a round that drafts n values, relative to a pace common to all n.

    A busy machine and a growing context change all rounds alike. So only a round of another length than its predecessor
    compares lengths; a repeated length moves the pace. Old measurements stay comparable. Choices depend on ratios only,
    so `table` leaves the pace out.

    Args:
        far: The limit of a comparison's deviation (as a log) once an estimate rests on several.
        early: The comparisons whose median starts an estimate. More resist a busy neighbour, fewer follow a change.
    """

    def __init__(self, far: float = _FAR, early: int = _EARLY) -> None:
        self.far, self.early = far, early
        self.pace = 0.0
        self.measured: dict[int, _CostEstimate] = {}
        self._last: int | None = None
        self._table: list[float] = []

    def add(self, length: int, seconds: float) -> bool:
        """Add a round that drafted `length` values (0: none). Return whether it compares lengths."""
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
        """Return the number of rounds measured at this length."""
        known = self.measured.get(length)
        return 0 if known is None else known.rounds

    def seconds(self, length: int) -> float:
        """Return the seconds of a measured length at the present pace."""
        return exp(self.measured[length].mean + self.pace)

    @property
    def ready(self) -> bool:
        """Whether rounds with and without a draft have been measured."""
        return 0 in self.measured and len(self.measured) > 1

    def paced(self, seconds: float) -> float:
        """Convert seconds of now to the unit of the table."""
        return seconds * exp(-self.pace)

    def table(self, deepest: int) -> list[float]:
        """Return the cost of n = 0..deepest values. Only if `ready`.

        All costs but the first are shrunk towards a straight line, which also fills the gaps.
        """
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
    """Return intercept and slope (never falling) of a weighted fit; a single point gets a fixed part of one step."""
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
    """Return a probability moved by `shift` in log-odds; a shift of 0 returns it unchanged."""
    if not shift or not 0 < share < 1:
        return share
    return 1 / (1 + exp(-log(share / (1 - share)) - shift))


class AcceptanceModel:
    """The chance by depth that a drafted value is accepted given that all earlier values are; with forgetting.

    A sudden change (three standard deviations of the last ten tries or so) discards the history of a depth. A rarely
    tried depth follows the depth above it.
    """

    window, recent, first = 0.99, 0.9, 0.6

    def __init__(self) -> None:
        self.hits: list[float] = []
        self.tries: list[float] = []
        self.latest: list[float] = []  # the same share over the last ten or so

    def add(self, accepted: int, drafted: int) -> None:
        """Add a row's outcome: `accepted` of a draft of up to `drafted` levels."""
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
        """Halve the weight of old outcomes."""
        self.hits = [0.5 * h for h in self.hits]
        self.tries = [0.5 * t for t in self.tries]

    def settled(self, length: int, outcomes: list[int], drafted: int) -> None:
        """Add a round's outcomes of all rows that count, of a draft of the requested `length` and `drafted` levels."""
        for accepted in outcomes:
            self.add(accepted, drafted)

    def shares(self, deepest: int, hope: float = 0.0, shift: float = 0.0) -> list[float]:
        """Return the chance of depths 1..deepest given the depth before.

        Args:
            deepest: The number of depths.
            hope: The standard deviations by which the chances are raised.
            shift: The log-odds by which they are moved.
        """
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
        """Return `shares` of all depths that were tried."""
        return self.shares(len(self.hits))

    def tokens(self, deepest: int, hope: float = 0.0, shift: float = 0.0) -> list[float]:
        """Return the values of a row per round for drafts of 0..deepest levels, the target's own value included."""
        reach, total, sums = 1.0, 1.0, [1.0]
        for share in self.shares(deepest, hope, shift):
            reach *= share
            total += reach
            sums.append(total)
        return sums


class WindowAcceptanceModel:
    """The values per round of windows, by window length, with forgetting.

    The positions of a window settle round by round before they are verified, so the values depend on the whole length.
    Each length therefore has its own estimate. A rarely tried length follows its neighbours: values grow about as a
    power of the nodes of a pass, n + 1.
    """

    decay, prior, power, spread = 0.99, 12.0, 0.5, 0.9

    def __init__(self) -> None:
        self.yielded: dict[int, tuple[float, float]] = {}  # length -> values emitted, rounds

    def settled(self, length: int, outcomes: list[int], drafted: int) -> None:
        """Add a round's outcomes, as in `AcceptanceModel`."""
        values, rounds = self.yielded.get(length, (0.0, 0.0))
        for accepted in outcomes:
            values, rounds = self.decay * values + 1 + accepted, self.decay * rounds + 1
        self.yielded[length] = values, rounds

    def fade(self) -> None:
        """Halve the weight of old outcomes."""
        self.yielded = {n: (0.5 * values, 0.5 * rounds) for n, (values, rounds) in self.yielded.items()}

    def tokens(self, deepest: int, hope: float = 0.0) -> list[float]:
        """Return the values of a row per round for windows of 0..deepest drafted values, as in `AcceptanceModel`."""
        known = sorted((n, *self.yielded[n]) for n in self.yielded if n <= deepest)
        sums = [1.0]
        for length in range(1, deepest + 1):
            values, rounds = self.yielded.get(length, (0.0, 0.0))
            mean = (values + self.prior * self._beside(length, known)) / (rounds + self.prior)
            sums.append(mean * (1 + hope * self.spread / sqrt(rounds + 4)))
        return sums

    def _beside(self, length: int, known: list[tuple[int, float, float]]) -> float:
        """Return the values of a length, interpolated from the next shorter and the next longer measured length."""
        below = [entry for entry in known if entry[0] < length][-1:]
        above = [entry for entry in known if entry[0] > length][:1]
        powers = [log(max(values / rounds, 1.0)) / log(n + 1) for n, values, rounds in below + above]
        return (length + 1) ** (sum(powers) / len(powers) if powers else self.power)

    def known(self) -> dict[int, float]:
        """Return the values per round of each measured length."""
        return {n: values / rounds for n, (values, rounds) in sorted(self.yielded.items())}
