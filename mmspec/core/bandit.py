"""A bandit over draft lengths: it picks the length that yields most values per second, and explores within a budget."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from mmspec.core.round_estimates import AcceptanceModel, RoundCosts, WindowAcceptanceModel

_PLAIN = 3  # plain rounds before anything is drafted
_SHORT, _LONG = 1, 5  # which lengths are tried at first; of windows the second and the third
_HELD = 2  # rounds a window stays longer than it takes to settle
_WORTH = 4  # values a request must have ahead of it for a first look at the drafter, or for a probe
_HOPEFUL = 24  # drafts during which what is little known is thought better than it looks, less and less so
_CREDIT = 500  # plain rounds that count as spent from the start
_ENTER, _LEAVE = 0.04, 0.01  # gain over plain rounds at which drafting starts, and below which it ends
_PROBED = 2  # rounds of a probe, behind those in which a window settles
_COLD = 2  # first rounds of a request, which are slower than the next
_LATE = 32  # values left when rows that would leave one another are probed
_FIRST, _LAST = 16, 256  # rounds between two probes of a drafter that does not pay: doubled from one to the other
_NEXT, _STALE = 16, 32  # rounds between two excursions; age at which a length is looked at again
_STALE_PLAIN, _CLEAR = 96, 1.25  # ... and plain rounds, unless the gain is below this: then after `_NEXT`
_SOON, _NARROW, _SURE = 6, 1.5, 16  # gains below the second rest on so many comparisons; until then one in 6 rounds


@dataclass(slots=True)
class BanditRequest:
    """A request's part.

    deepest: longest draft that can be asked for; None where the drafter's shape is fixed, which is then length 1 of 1.
    lengths: those worth telling apart, ascending; empty for all up to `deepest`.   settling: rounds until a draft of another
    length than before is what it will be.
    fresh: the drafter has not drafted, so has not read the prompt.   prompt: its length, 1 where unknown.
    skipped: rounds since the last draft.   trial: rounds left of a probe.   ahead: what the probe has gained so far.
    held: rounds for which the length stays.   last, same: the length of the last round, and how often it came in a row.
    emitted: values of the longest row, were this round to end it with one more.
    left: values the request can still emit at most, None where unknown.   whole: it will emit all of them.
    together: its rows stand at one place as long as nothing is drafted, where plain rounds cost least: what does not pay is
    probed near the end, so that the rest costs no more than it has to.   begun: rounds so far.
    """

    deepest: int | None
    prompt: int = 1
    lengths: tuple[int, ...] = ()
    settling: int = 0
    whole: bool = False
    together: bool = False
    begun: int = 0
    fresh: bool = True
    skipped: int = 0
    trial: int = 0
    ahead: float = 0.0
    held: int = 0
    last: int = 0
    same: int = 0
    emitted: list[int] = field(default_factory=lambda: [0])
    left: int | None = None

    def __post_init__(self) -> None:
        self.lengths = self.lengths or tuple(range(1, (self.deepest or 1) + 1))

    def within(self, length: int) -> int:
        """`length`, or as much of it as the request has room for; windows end with the request by themselves."""
        if self.deepest is None or self.left is None or self.settling:
            return length
        return min(length, self.left - 1)

    def cut(self, length: int) -> bool:
        """Whether the request's end cut a window short, which then tells nothing of its length."""
        return self.settling > 0 and self.left is not None and length >= self.left


class DraftLengthBandit:
    """What is known of one kind of request. Times in `costs` units, see `RoundCosts`.

    rounds: how often each length was chosen.   spent, lost: time of all rounds, and how much of it trying out is thought
    to have cost.   reading: of the drafter's prompt, per prompt value, the median of the last `readings`.
    catching_up: per skipped round.   hopeless: the last choice found no gain, and nothing it rests on has changed since.
    """

    def __init__(self, explore: float, settling: int = 0):
        self.explore = explore
        self.costs = RoundCosts()
        self.profile = WindowAcceptanceModel() if settling else AcceptanceModel()
        self.rounds: Counter[int] = Counter()
        self.reading = 0.0
        self.readings: deque[float] = deque(maxlen=7)
        self.held: list[tuple[float, int, int]] = []  # first drafts of requests, seen before their length was measured
        self.catching_up = 0.0
        self.spent = self.lost = 0.0
        self.lengths: deque[list[int]] = deque(maxlen=32)  # of answers, those still growing among them
        self.seen: dict[int, int] = {}  # length -> round it was last measured in
        self.now = self.opening = self.idle = self.last_excursion = 0
        self.looks = self.next_look = 0
        self.wait, self.reach, self.drafted, self.paying, self.hopeless = _FIRST, 1, 0, True, False

    def choose(self, seat: BanditRequest) -> int:
        """How many values to draft in this round, 0 for none."""
        if seat.left is not None and seat.left < 2 or self.costs.count(0) < _PLAIN:
            return 0
        if self.hopeless and self.idle + 1 < self.wait and not seat.trial:
            self.idle += 1
            return 0
        if seat.held:
            seat.held -= 1
            return seat.within(seat.last)
        chosen = self._chosen(seat)
        if seat.settling and chosen not in (0, seat.last):
            seat.held = seat.settling + _HELD
        return chosen

    def _chosen(self, seat: BanditRequest) -> int:
        deepest, ready = seat.deepest or 1, self.costs.ready
        opening = self._opening(seat)
        if self.opening < len(opening) and ready and not self._promising(seat):
            self.opening = len(opening)  # nothing that is still unknown could make it pay
        if self.opening < len(opening) or not ready:
            # a first look has to be worth reading the prompt for
            if seat.fresh and (self._remaining(seat) < _WORTH or self.now < self.next_look):
                return 0
            if seat.fresh:  # a look that ends with its request teaches nothing, so the next one comes later
                self.looks += 1
                self.next_look = self.now + _FIRST * 2**self.looks
            return seat.within(opening[min(self.opening, len(opening) - 1)])
        price, yields = self.costs.table(deepest), self._yields(seat, self._hope)
        best = max(self._candidates(seat), key=lambda n: yields[n] / price[n])
        rate = yields[best] / price[best]
        if seat.trial:
            return best
        saved = price[0] - 1 / rate  # per value emitted
        debt = self._debt(seat)
        gain = saved * self._remaining(seat) if debt else 0.0
        self.hopeless = saved <= _ENTER * price[0]
        if seat.together and seat.begun <= _COLD and rate * price[0] < _CLEAR:
            return 0  # a narrow gain is held against plain rounds while rows are together
        if saved > (_LEAVE if self.paying else _ENTER) * price[0] and gain >= debt:
            self.wait, self.idle, self.paying, self.hopeless = _FIRST, 0, True, False
            return self._excursion(seat, best, rate, price, yields)
        self.paying = False
        loss = -gain if saved > 0 else -(_PROBED + seat.settling) * saved * yields[best]
        self._probe(seat, debt + loss, price)
        return best if seat.trial else 0

    def _opening(self, seat: BanditRequest) -> tuple[int, ...]:
        # plain rounds in between: lengths compare best where the machine was the same
        lengths, last = seat.lengths, len(seat.lengths) - 1
        if seat.settling:
            return (lengths[min(1, last)], 0, lengths[min(2, last)], 0)  # each of them is held
        short, long = lengths[min(_SHORT, last)], lengths[min(_LONG, last)]
        return (short, 0, short, 0, long, 0, long, 0, short)

    def _promising(self, seat: BanditRequest) -> bool:
        """Whether any length pays if all goes as well as it may, by what has been seen."""
        price, yields = self.costs.table(seat.deepest or 1), self._yields(seat, 1.0)
        return any(yields[n] * price[0] > price[n] for n in self._candidates(seat))

    def _candidates(self, seat: BanditRequest) -> list[int]:
        """Lengths to choose among. Windows grow step by step: what a long one costs and yields is hard to tell from afar."""
        most, lengths = seat.within(seat.deepest or 1), seat.lengths
        if seat.settling:
            tried = [n for n in lengths if self.costs.count(n)]
            lengths = lengths[: lengths.index(tried[-1]) + 2] if tried else lengths[:1]
        return [n for n in lengths if n <= most] or [most]

    @property
    def _hope(self) -> float:
        return max(1 - self.drafted / _HOPEFUL, 0.0)

    def _yields(self, seat: BanditRequest, hope: float) -> list[float]:
        if seat.deepest is not None:
            return self.profile.tokens(seat.deepest, hope)
        reach = self.reach if seat.left is None else min(self.reach, seat.left - 1)
        return [1.0, self.profile.tokens(reach, hope)[-1]]

    def _debt(self, seat: BanditRequest) -> float:
        """What the drafter has to read before it can draft as it does in the middle of an answer."""
        prompt = self.reading * seat.prompt if seat.fresh else 0.0
        return prompt + self.catching_up * seat.skipped

    def _remaining(self, seat: BanditRequest) -> float:
        """Values the request is expected to emit still: what longer answers had left here; long ones tend to go on."""
        if seat.whole:
            return seat.left
        here = seat.emitted[0] - 1
        longer = [cell[0] - here for cell in self.lengths if cell[0] > here and cell is not seat.emitted]
        expected = (sum(longer) + 4 + here) / (len(longer) + 1)
        return expected if seat.left is None else min(expected, seat.left)

    def _excursion(self, seat: BanditRequest, best: int, rate: float, price: list[float], yields: list[float]) -> int:
        """Now and then a neighbour of the best length, or none, where that was not measured for long."""
        since = self.now - self.last_excursion
        if since < _SOON:
            return best
        plain, gain = self.costs.measured[0].compared, price[0] * rate
        if gain < _NARROW and plain < _SURE:  # a narrow gain that rests on little is looked at first
            age, other = _STALE, 0
        elif since < _NEXT:
            return best
        else:
            lengths = self._candidates(seat)
            at = lengths.index(best)
            beside = (*lengths[max(at - 1, 0) : at], *lengths[at + 1 : at + 2])
            ages = [(self.now - self.seen.get(n, -_STALE), n) for n in beside]
            stale = _STALE_PLAIN if gain > _CLEAR else _NEXT
            ages.append((self.now - self.seen.get(0, 0) - stale + _STALE, 0))
            age, other = max(ages)
        rounds = 1 + seat.settling + _HELD if other and seat.settling else 1
        loss = rounds * max(price[other] - yields[other] / rate, 0.0)
        if age < _STALE or not self._affords(loss, price):
            return best
        self.last_excursion = self.now
        self.lost += loss
        return other

    def _affords(self, loss: float, price: list[float]) -> bool:
        return self.lost + loss <= self.explore * (self.spent + _CREDIT * price[0])

    def _probe(self, seat: BanditRequest, loss: float, price: list[float]) -> None:
        """Starts a probe of a few rounds when it is time for one and its expected loss can be afforded."""
        self.idle += 1
        if self.idle < self.wait or self._remaining(seat) < _WORTH or not self._affords(loss, price):
            return
        if seat.together and seat.left is not None and seat.left > _LATE:
            return
        self.lost += loss
        self.idle, self.wait = 0, min(2 * self.wait, _LAST)
        self.profile.fade()
        self.hopeless = False
        seat.trial, seat.ahead = _PROBED + seat.settling, 0.0

    def learn(
        self, seat: BanditRequest, length: int, seconds: float, depths: list[int], reach: int, plain: bool = True
    ) -> None:
        """One round that has ended.

        length: as chosen.   seconds: its time.   depths: accepted values of every row that counts.   reach: levels drafted.
        plain: a round without a draft took as long as in plain decoding.
        """
        self.now += 1
        self.rounds[length] += 1
        cold = seat.together and seat.begun < _COLD
        seat.begun += 1
        self.spent += self.costs.paced(seconds)
        seat.last, seat.same = length, seat.same + 1 if length == seat.last else 0
        opening = self._opening(seat)[self.opening :]
        self.opening += bool(opening) and (length > 0 or opening[0] == 0) and not seat.held
        if length == 0:
            self.seen[0] = self.now
            seat.skipped += 1
            if plain and not cold and self.costs.add(0, seconds):
                self.hopeless = False
            return
        if seat.cut(length):
            return
        self.drafted += 1
        self.hopeless = False
        drafted = length
        if seat.deepest is None:
            drafted = self.reach = max(self.reach, reach)
        if seat.same >= seat.settling:
            self.profile.settled(length, depths, drafted)
        self._account(seat, length, seconds)
        if seat.trial and depths:
            self._judge_trial(seat, length, 1 + sum(depths) / len(depths))
        self.looks = self.next_look = 0
        seat.fresh, seat.skipped = False, 0

    def _account(self, seat: BanditRequest, length: int, seconds: float) -> None:
        """A round after others is a sample of its length; one that had to read first tells what reading costs."""
        if not seat.fresh and seat.skipped <= 2:
            self.seen[length] = self.now
            self.costs.add(length, seconds)
        elif seat.fresh:
            self.held.append((self.costs.paced(seconds) - self.catching_up * seat.skipped, length, seat.prompt))
        elif self.costs.ready:
            extra = max(self.costs.paced(seconds) - self.costs.table(seat.deepest or 1)[length], 0.0)
            self.catching_up += 0.1 * (extra / seat.skipped - self.catching_up)
        if self.held and self.costs.ready:
            table = self.costs.table(seat.deepest or 1)
            self.readings.extend(max(whole - table[drafted], 0.0) / prompt for whole, drafted, prompt in self.held)
            self.reading = sorted(self.readings)[(len(self.readings) - 1) // 2]
            self.held = []

    def _judge_trial(self, seat: BanditRequest, length: int, emitted: float) -> None:
        """A probe goes on as long as it pays."""
        price = self.costs.table(seat.deepest or 1)
        seat.ahead += emitted * price[0] - price[length]
        seat.trial -= 1
        if seat.trial == 0 and seat.ahead > 0:
            seat.trial = 1
        elif seat.trial == 0:
            seat.held = 0

    def summary(self) -> dict:
        """Plain numbers of the estimates, for people and JSON."""
        seconds = {n: self.costs.seconds(n) for n in sorted(self.costs.measured)}
        return {
            "rounds": dict(sorted(self.rounds.items())),
            "seconds": seconds,
            "accepted": self.profile.known(),
            "explored": self.lost / self.spent if self.spent else 0.0,
        }
