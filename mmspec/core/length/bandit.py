from __future__ import annotations

from collections import Counter, deque

from mmspec.core.length.bandit_request import BanditRequest, BanditSettings
from mmspec.core.length.draft_features import FeaturePrior
from mmspec.core.length.round_estimates import AcceptanceModel, RoundCosts, WindowAcceptanceModel


class DraftLengthBandit:
    """The estimates for one kind of request, and the choice of a length from them. Times have the unit of `RoundCosts`.
    `lost` is the part of `spent` that exploration is estimated to have cost. `seen` is the round in which each length
    was last measured. `reading` is seconds per prompt value, the median of the last `readings`; `catching_up` seconds
    per skipped round. `first_drafts` wait for the cost of their length. `lengths` counts running requests too.
    `hopeless`: the last choice expected no gain, and its inputs are the same."""

    settings = BanditSettings()

    def __init__(self, explore: float, settling: int = 0, prior: FeaturePrior | None = None):
        self.explore, self.prior = explore, None if settling else prior
        self.costs = RoundCosts()
        self.acceptance = WindowAcceptanceModel() if settling else AcceptanceModel()
        self.rounds: Counter[int] = Counter()
        self.reading = self.catching_up = self.spent = self.lost = 0.0
        self.readings: deque[float] = deque(maxlen=7)
        self.first_drafts: list[tuple[float, int, int]] = []
        self.lengths: deque[list[int]] = deque(maxlen=32)
        self.seen: dict[int, int] = {}
        self.now = self.opened = self.idle = self.last_excursion = self.looks = self.next_look = self.drafted = 0
        self.wait, self.reach, self.paying, self.hopeless = self.settings.first_wait, 1, True, False

    def choose(self, request: BanditRequest) -> int:
        """Return the length of the next draft, 0 for a plain round, and count the round in the state that decided."""
        # 1. plain: nothing is left to draft, or the time of plain rounds is not known yet
        if request.left is not None and request.left < 2 or self.costs.count(0) < self.settings.plain_rounds:
            return 0
        # 2. waiting: drafts were hopeless, and the next probe is not due
        if self.hopeless and self.idle + 1 < self.wait and not request.probe_rounds:
            self.idle += 1
            return 0
        # 3. holding: windows of a new length have not their usual acceptance yet
        if request.hold_rounds:
            request.hold_rounds -= 1
            return request.within(request.last)
        # 4. opening: lengths are measured in turn; after them, the best length is taken
        lengths = request.opening(self.settings)
        if self.opened < len(lengths) and self.costs.ready and not self._promising(request):
            self.opened = len(lengths)  # no length that is still unmeasured could be faster
        if self.opened < len(lengths) or not self.costs.ready:
            chosen = self._opening_length(request, lengths)
        else:
            chosen = self._best_length(request)
        if request.settling and chosen not in (0, request.last):
            request.hold_rounds = request.settling + self.settings.hold
        return chosen

    def _opening_length(self, request: BanditRequest, lengths: tuple[int, ...]) -> int:
        if request.fresh:
            if self._remaining(request) < self.settings.worth or self.now < self.next_look:
                return 0
            # a request may end before its first look has taught anything, so the wait for the next look doubles
            self.looks += 1
            self.next_look = self.now + self.settings.first_wait * 2**self.looks
        return request.within(lengths[min(self.opened, len(lengths) - 1)])

    def _best_length(self, request: BanditRequest) -> int:
        settings, price = self.settings, self.costs.table(request.levels)
        yields = self._yields(request, max(1 - self.drafted / settings.hopeful, 0.0))
        best = max(self._candidates(request), key=lambda n: yields[n] / price[n])
        rate = yields[best] / price[best]
        if request.probe_rounds:
            return best
        saved = price[0] - 1 / rate  # per value emitted
        debt = self._debt(request)
        gain = saved * self._remaining(request) if debt else 0.0
        self.hopeless = saved <= settings.enter * price[0]
        if request.together and request.begun <= settings.cold and rate * price[0] < settings.clear:
            return 0  # a small gain does not make up for rows that leave their common position
        if saved > (settings.leave if self.paying else settings.enter) * price[0] and gain >= debt:
            self.wait, self.idle, self.paying, self.hopeless = settings.first_wait, 0, True, False
            return self._excursion(request, best, rate, price, yields)
        self.paying = False
        loss = -gain if saved > 0 else -(settings.probe + request.settling) * saved * yields[best]
        self._probe(request, debt + loss, price)
        return best if request.probe_rounds else 0

    def _promising(self, request: BanditRequest) -> bool:
        """Return whether any length would be faster at the most optimistic acceptance that fits the measurements."""
        price, yields = self.costs.table(request.levels), self._yields(request, 1.0)
        return any(yields[n] * price[0] > price[n] for n in self._candidates(request))

    def _candidates(self, request: BanditRequest) -> list[int]:
        """Return the lengths to choose among. Windows grow step by step, since far estimates are poor."""
        most, lengths = request.within(request.levels), request.lengths
        if request.settling:
            tried = [n for n in lengths if self.costs.count(n)]
            lengths = lengths[: lengths.index(tried[-1]) + 2] if tried else lengths[:1]
        return [n for n in lengths if n <= most] or [most]

    def _yields(self, request: BanditRequest, hope: float) -> list[float]:
        moved = (request.shift,) if request.shift else ()  # windows have no acceptance by depth to move
        if request.deepest is not None:
            return self.acceptance.tokens(request.deepest, hope, *moved)
        reach = self.reach if request.left is None else min(self.reach, request.left - 1)
        return [1.0, self.acceptance.tokens(reach, hope, *moved)[-1]]

    def _debt(self, request: BanditRequest) -> float:
        prompt = self.reading * request.prompt if request.fresh else 0.0
        return prompt + self.catching_up * request.skipped

    def _remaining(self, request: BanditRequest) -> float:
        if request.whole:
            return request.left
        here = request.emitted[0] - 1
        longer = [cell[0] - here for cell in self.lengths if cell[0] > here and cell is not request.emitted]
        expected = (sum(longer) + 4 + here) / (len(longer) + 1)
        return expected if request.left is None else min(expected, request.left)

    def _excursion(
        self, request: BanditRequest, best: int, rate: float, price: list[float], yields: list[float]
    ) -> int:
        """Return the best length, or at times a neighbour or 0 whose measurement is old."""
        settings, since = self.settings, self.now - self.last_excursion
        if since < settings.soon:
            return best
        plain, gain = self.costs.measured[0].compared, price[0] * rate
        if gain < settings.narrow and plain < settings.sure:  # a small gain from few comparisons is checked first
            age, other = settings.stale, 0
        elif since < settings.excursion:
            return best
        else:
            lengths = self._candidates(request)
            at = lengths.index(best)
            beside = (*lengths[max(at - 1, 0) : at], *lengths[at + 1 : at + 2])
            ages = [(self.now - self.seen.get(n, -settings.stale), n) for n in beside]
            stale = settings.stale_plain if gain > settings.clear else settings.excursion
            ages.append((self.now - self.seen.get(0, 0) - stale + settings.stale, 0))
            age, other = max(ages)
        rounds = 1 + request.settling + settings.hold if other and request.settling else 1
        loss = rounds * max(price[other] - yields[other] / rate, 0.0)
        if age < settings.stale or not self._affords(loss, price):
            return best
        self.last_excursion = self.now
        self.lost += loss
        return other

    def _affords(self, loss: float, price: list[float]) -> bool:
        return self.lost + loss <= self.explore * (self.spent + self.settings.credit * price[0])

    def _probe(self, request: BanditRequest, loss: float, price: list[float]) -> None:
        settings = self.settings
        self.idle += 1
        if self.idle < self.wait or self._remaining(request) < settings.worth or not self._affords(loss, price):
            return
        if request.together and request.left is not None and request.left > settings.late:
            return
        self.lost += loss
        self.idle, self.wait = 0, min(2 * self.wait, settings.last_wait)
        self.acceptance.fade()
        self.hopeless = False
        request.probe_rounds, request.probe_gain = settings.probe + request.settling, 0.0

    def learn(
        self, request: BanditRequest, length: int, seconds: float, depths: list[int], reach: int, plain: bool = True
    ) -> None:
        """Update the estimates with the accepted `depths` of every row that counts. `plain`: a round without a draft
        took its usual time."""
        self.now += 1
        self.rounds[length] += 1
        cold = request.together and request.begun < self.settings.cold
        request.begun += 1
        self.spent += self.costs.paced(seconds)
        request.last, request.same = length, request.same + 1 if length == request.last else 0
        unmeasured = request.opening(self.settings)[self.opened :]
        if unmeasured and (length > 0 or unmeasured[0] == 0) and not request.hold_rounds:
            self.opened += 1
        if length == 0:
            self.seen[0] = self.now
            request.skipped += 1
            if plain and not cold and self.costs.add(0, seconds):
                self.hopeless = False
            return
        if request.cut(length):
            return
        self.drafted += 1
        self.hopeless = False
        drafted = length
        if request.deepest is None:
            drafted = self.reach = max(self.reach, reach)
        if request.same >= request.settling:
            self.acceptance.add_rounds(length, depths, drafted)
        self._account(request, length, seconds)
        if request.probe_rounds and depths:
            self._end_probe(request, length, 1 + sum(depths) / len(depths))
        self.looks = self.next_look = 0
        request.fresh, request.skipped = False, 0

    def _account(self, request: BanditRequest, length: int, seconds: float) -> None:
        if not request.fresh and request.skipped <= 2:
            self.seen[length] = self.now
            self.costs.add(length, seconds)
        elif request.fresh:
            paid = self.costs.paced(seconds) - self.catching_up * request.skipped
            self.first_drafts.append((paid, length, request.prompt))
        elif self.costs.ready:
            extra = max(self.costs.paced(seconds) - self.costs.table(request.levels)[length], 0.0)
            self.catching_up += 0.1 * (extra / request.skipped - self.catching_up)
        if self.first_drafts and self.costs.ready:
            table = self.costs.table(request.levels)
            self.readings.extend(
                max(paid - table[drafted], 0.0) / prompt for paid, drafted, prompt in self.first_drafts
            )
            self.reading = sorted(self.readings)[(len(self.readings) - 1) // 2]
            self.first_drafts = []

    def _end_probe(self, request: BanditRequest, length: int, emitted: float) -> None:
        price = self.costs.table(request.levels)
        request.probe_gain += emitted * price[0] - price[length]
        request.probe_rounds -= 1
        if request.probe_rounds == 0 and request.probe_gain > 0:
            request.probe_rounds = 1
        elif request.probe_rounds == 0:
            request.hold_rounds = 0

    def summary(self) -> dict:
        return {
            "rounds": dict(sorted(self.rounds.items())),
            "seconds": {n: self.costs.seconds(n) for n in sorted(self.costs.measured)},
            "accepted": self.acceptance.known(),
            "explored": self.lost / self.spent if self.spent else 0.0,
        }
