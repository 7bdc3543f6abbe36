"""What a round yields, by how many values it drafts: running estimates from how often drafted values were accepted."""

from __future__ import annotations

from math import log, sqrt


class Profile:
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


class WindowProfile:
    """What windows yield, by their length: their positions settle round by round before they are judged, so what a depth
    yields depends on the whole length, and lengths are told apart by what each yielded itself, with forgetting.

    A length that was rarely tried takes after those beside it: the values of a round grow about as a power of the values
    of a pass, n + 1.
    """

    kept, prior, power, spread = 0.99, 12.0, 0.5, 0.9

    def __init__(self) -> None:
        self.yielded: dict[int, tuple[float, float]] = {}  # length -> values emitted, rounds

    def settled(self, length: int, outcomes: list[int], drafted: int) -> None:
        """As of a `Profile`."""
        values, rounds = self.yielded.get(length, (0.0, 0.0))
        for accepted in outcomes:
            values, rounds = self.kept * values + 1 + accepted, self.kept * rounds + 1
        self.yielded[length] = values, rounds

    def fade(self) -> None:
        """As of a `Profile`."""
        self.yielded = {n: (0.5 * values, 0.5 * rounds) for n, (values, rounds) in self.yielded.items()}

    def tokens(self, deepest: int, hope: float = 0.0) -> list[float]:
        """As of a `Profile`: values a row emits per round with windows of 0..deepest drafts."""
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
