from __future__ import annotations

from collections import Counter, deque

from mmspec.core.length.draft_estimates import DrafterEstimates
from mmspec.core.length.draft_options import DraftOption, DraftSource
from mmspec.core.length.pass_costs import PassCosts
from mmspec.core.round.draft import Draft
from mmspec.core.round.loop import Target

Choice = tuple[int, DraftOption]  # a drafter's number and its draft

_WORTH = 8  # expected remaining values from which a first look at a drafter, or a probe, is worth its cost
_PROBE = 2  # rounds of a probe; it goes on as long as it gains
_RISK = 1.0  # the most that a probe is expected to lose, in plain passes, while the cost of its pass is in doubt
_CREDIT = 500  # plain rounds that count as spent from the start
_GAIN, _GAIN_IN_DOUBT = 0.01, 0.05  # the least expected gain of a draft, and while the cost of its pass is in doubt
_PLAIN_SOON, _PLAIN = 12, 128  # drafts between two plain rounds, before and after these are well measured
_NARROW = 1.5  # the gain below which plain rounds are compared more often, since noise may have made it up
_PLAIN_SOON_NARROW, _PLAIN_NARROW = 6, 32
_ASIDE = 8  # drafts between two drafts that are not the best
_NEAR = 0.9  # the share of the best rate that such a draft has to reach
_SURE = 8  # comparisons after which the cost of a pass is known
_RESTING = 24  # rounds without a draft after which a drafter rests


class PortfolioEstimates:
    """The estimates for one kind of request. `rounds` count drafts by drafter number (-1 for none), size and depth;
    `lost` is the part of `spent` (plain passes) for probes; `lengths` of answers include running requests."""

    def __init__(self, drafters: int):
        self.drafters = [DrafterEstimates() for _ in range(drafters)]
        self.rounds: Counter[tuple[int, int, int]] = Counter()
        self.spent = self.lost = 0.0
        self.turn = 0
        self.lengths: deque[list[int]] = deque(maxlen=32)


class PortfolioChoice:
    """The choices of one request: the draft of the highest rate, its expected values over its cost in plain passes; a
    plain round has rate 1. Greedy: later values are emitted anyway, at a cost that does not depend on this round. It
    depends on committed values, acceptances and times only, so drafts keep their distributions. The single number in
    `emitted` is the values of the longest row if this round adds one value and ends it."""

    def __init__(self, sources: list[DraftSource], known: PortfolioEstimates, explore: float, prompt: int):
        self.sources, self.known, self.explore, self.prompt = sources, known, explore, prompt
        self.emitted = [0]
        self.probing: int | None = None
        self.probe_rounds, self.probe_gain = 0, 0.0
        self.rested = [0] * len(sources)

    def choose(self, target: Target, left: int | None) -> Choice | None:
        """Return None for a plain round. `left` is the values that the shortest row can still emit, None where unknown."""
        costs = target.pass_costs
        if not costs.ready or (left is not None and left < 2):
            return None
        room, remaining = 1 << 30 if left is None else left - 1, self._remaining(left)
        best, chosen, others, probes = 1 + _GAIN, None, [], []
        # drafters that have read their prompt go first, as the baseline for those that have not
        for number, source in sorted(enumerate(self.sources), key=lambda pair: pair[1].fresh):
            options = list(source.options(target, costs, room))
            if not options:
                continue
            option = max(options, key=_rate)
            if number == self.probing:
                return number, option
            saved = 1 / best - 1 / _rate(option)  # for every value
            debt = self._debt(source)
            fits = not source.fresh or (remaining >= _WORTH and saved * remaining > debt)
            # no cost matters where drafts are not accepted
            in_doubt = costs.compared(option.nodes) < _SURE and option.tokens > 1 + _GAIN_IN_DOUBT
            if saved > 0 and fits and (not in_doubt or _rate(option) > 1 + _GAIN_IN_DOUBT):
                best, chosen, others = _rate(option), (number, option), options
            elif not source.previews:
                loss = min(-saved * option.tokens, _RISK) if in_doubt else -_PROBE * saved * option.tokens
                probes.append((number, option, debt + loss, in_doubt))
        self.probing = None
        probe = self._probe(probes, remaining)
        if probe is not None or chosen is None:
            return probe
        return self._compared(chosen, others, costs)

    def _compared(self, chosen: Choice, others: list[DraftOption], costs: PassCosts) -> Choice | None:
        """Return at times a similar draft or a plain round that was rarely compared with others."""
        turn = self.known.turn = self.known.turn + 1
        soon, late = (_PLAIN_SOON_NARROW, _PLAIN_NARROW) if _rate(chosen[1]) < _NARROW else (_PLAIN_SOON, _PLAIN)
        if turn % (soon if costs.compared(1) < _SURE else late) == 0:
            return None
        if turn % _ASIDE:
            return chosen
        number, option = chosen
        near = [o for o in others if _rate(o) > _NEAR * _rate(option) and costs.compared(o.nodes) < 2 * _SURE]
        return number, min(near, key=lambda o: costs.compared(o.nodes), default=option)

    def _probe(self, probes: list[tuple[int, DraftOption, float, bool]], remaining: float) -> Choice | None:
        """Start a probe of a slower drafter when it is due and its expected loss fits the budget. Few comparisons may
        all have met another process: a drafter that seems slow because of them gets a try of a single round after half
        the wait, with a loss of at most `_RISK`."""
        for number, option, loss, in_doubt in probes:
            estimates = self.sources[number].estimates
            estimates.idle += 1
            spent = self.known.lost + max(loss, 0.0)
            wait = estimates.wait // 2 if in_doubt else estimates.wait
            if estimates.idle < wait or remaining < _WORTH or spent > self._budget():
                continue
            self.known.lost = spent
            estimates.idle, estimates.wait = 0, min(2 * estimates.wait, estimates.last_wait)
            if not in_doubt:  # a try because of doubtful costs leaves the known acceptance alone
                estimates.fade()
            self.probing, self.probe_rounds, self.probe_gain = number, 1 if in_doubt else _PROBE, 0.0
            return number, option
        return None

    def _budget(self) -> float:
        return self.explore * (self.known.spent + _CREDIT)

    def _debt(self, source: DraftSource) -> float:
        return (source.estimates.reading or 0.0) * self.prompt if source.fresh else 0.0

    def _remaining(self, left: int | None) -> float:
        here = self.emitted[0] - 1
        longer = [cell[0] - here for cell in self.known.lengths if cell[0] > here and cell is not self.emitted]
        expected = (sum(longer) + 4 + here) / (len(longer) + 1)
        return expected if left is None else min(expected, left)

    def learn(self, target: Target, draft: Draft, chosen: Choice | None, seconds: float, drawing: float) -> None:
        """`drawing` is the part of the seconds that drafting took."""
        number, option = (-1, DraftOption(0, 0, 1, 1.0, 1.0)) if chosen is None else chosen
        self.known.rounds[number, option.size, option.depth] += 1
        for other, source in enumerate(self.sources):
            source.finish_round(target, option if other == number else None, draft)
            self.rested[other] = 0 if other == number else self.rested[other] + 1
        if target.pass_costs.measured.count(1) == 0:
            return
        plain = target.pass_costs.plain_seconds()
        steps = [len(path) for path in target.paths if path]
        self.known.spent += seconds / plain
        if chosen is not None:
            self._drew(number, option, drawing / plain, sum(steps) / max(len(steps), 1))

    def _drew(self, number: int, option: DraftOption, cost: float, gained: float) -> None:
        source = self.sources[number]
        estimates: DrafterEstimates = source.estimates
        estimates.drafts += 1
        if source.fresh:
            estimates.read(option.size, option.depth, cost, self.prompt)
        else:
            estimates.drew(option.size, option.depth, cost)
        source.fresh = False
        if number != self.probing:
            estimates.idle, estimates.wait = 0, estimates.first_wait
            return
        self.probe_gain += gained - option.cost
        self.probe_rounds -= 1
        if self.probe_rounds <= 0 and self.probe_gain <= 0:
            self.probing = None
        elif self.probe_gain > 0:  # a gain is a reason to try again soon, even if the estimates decide against drafts
            estimates.wait = estimates.first_wait

    def active(self, number: int) -> bool:
        return self.rested[number] < _RESTING or self.probing == number

    def encoded(self, chosen: Choice | None) -> int:
        if chosen is None:
            return 0
        number, option = chosen
        return 1 + number + len(self.sources) * (option.depth + 1024 * (option.size + 1))

    def decoded(self, code: int) -> Choice | None:
        if code == 0:
            return None
        rest, number = divmod(code - 1, len(self.sources))
        size, depth = divmod(rest, 1024)
        return number, DraftOption(size - 1, depth, depth + 1, 1.0, 1.0)


def _rate(option: DraftOption) -> float:
    return option.tokens / option.cost
