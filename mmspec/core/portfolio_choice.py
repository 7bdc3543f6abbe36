"""The choice of a round's draft: the expected values of every draft that can be made, less what its time is worth."""

from __future__ import annotations

from collections import Counter, deque

from mmspec.core.draft import Draft
from mmspec.core.draft_estimates import DrafterEstimates
from mmspec.core.draft_options import DraftOption, DraftSource
from mmspec.core.loop import Target
from mmspec.core.pass_costs import PassCosts

Choice = tuple[int, DraftOption]  # a drafter's number and its draft

_WORTH = 8  # values that a request is expected to emit still, for a first look at a drafter and for a probe
_PROBE = 2  # rounds of a probe; it goes on as long as it gains
_CREDIT = 500  # plain rounds that count as spent from the start
_GAIN = 0.01  # the gain over plain decoding that a draft has to promise, as a share
_RECENT, _STEADY = 0.94, 4.0  # what is left of a round in the request's rate after another, and rounds of its start
_PLAIN_SOON, _PLAIN = 12, 128  # drafts between two plain rounds, as long as they were hardly measured, and later
_ASIDE, _NEAR = 8, 0.15  # drafts between two that are not the best, and what these may be worth less, in plain passes
_SURE = 8  # comparisons behind which the cost of a pass is known
_RESTING = 24  # rounds without a draft after which a drafter rests


class PortfolioEstimates:
    """The estimates of one kind of request: of every drafter, and of the lengths of answers.

    rounds: how often each draft was made, by the drafter's number (-1 for none), its size and its depth.
    spent, lost: time of all rounds in plain passes, and the part of it that probes are thought to have cost.
    lengths: of answers, those still growing among them.   turn: rounds with a draft that were chosen.
    """

    def __init__(self, drafters: int):
        self.drafters = [DrafterEstimates() for _ in range(drafters)]
        self.rounds: Counter[tuple[int, int, int]] = Counter()
        self.spent = self.lost = 0.0
        self.turn = 0
        self.lengths: deque[list[int]] = deque(maxlen=32)


class PortfolioChoice:
    """The choices of one request.

    A draft is worth E[values] - rate * cost, with the rate of values a plain pass's time that the request has reached so
    far; the draft of the highest worth raises that rate most. Where no draft is worth more than a plain round, none is made.
    The choice looks at committed values, acceptances and times only, so drafts keep their laws.

    emitted: a cell with the values of the longest row, were this round to end it with one more.
    """

    def __init__(self, sources: list[DraftSource], known: PortfolioEstimates, explore: float, prompt: int):
        self.sources, self.known, self.explore, self.prompt = sources, known, explore, prompt
        self.emitted = [0]
        self.values, self.time = _STEADY, _STEADY
        self.probing: int | None = None
        self.probe_rounds, self.probe_gain = 0, 0.0
        self.rested = [0] * len(sources)

    @property
    def rate(self) -> float:
        """Values a row gets in the time of a plain pass; plain decoding reaches 1."""
        return max(self.values / self.time, 1.0)

    def choose(self, target: Target, left: int | None) -> Choice | None:
        """The round's draft, or None for a plain round.

        Args:
            target: Behind its last commit.
            left: Values that the shortest row can still emit; None where unknown.
        """
        costs = target.pass_costs
        if not costs.ready or (left is not None and left < 2):
            return None
        rate, room = self.rate, 1 << 30 if left is None else left - 1
        plain = 1 - rate
        best, chosen, probes = plain + _GAIN * rate, None, []
        others: list[DraftOption] = []
        remaining = self._remaining(left)
        for number, source in enumerate(self.sources):
            options = list(source.options(target, costs, room))
            if not options:
                continue
            option = max(options, key=lambda o: o.tokens - rate * o.cost)
            if number == self.probing:
                return number, option
            worth = option.tokens - rate * option.cost
            debt = self._debt(source, rate)
            if source.fresh:  # the prompt is read once, for all rounds to come
                fits = remaining >= _WORTH and (worth - plain) * remaining / option.tokens > debt
            else:
                fits = True
            if fits and worth > best:
                best, chosen, others = worth, (number, option), options
            elif not source.previews:
                probes.append((number, option, _PROBE * (plain - worth) + debt))
        self.probing = None
        probe = self._probe(probes, remaining, chosen)
        if probe is not None or chosen is None:
            return probe
        return self._compared(chosen, others, best, costs)

    def _compared(self, chosen: Choice, others: list[DraftOption], best: float, costs: PassCosts) -> Choice | None:
        """Now and then another draft than the best, or none, so that costs stay comparable: a draft of nearly the same worth
        whose pass has hardly been compared with others, or a plain round, to which all costs are relative."""
        turn = self.known.turn = self.known.turn + 1
        if turn % (_PLAIN_SOON if costs.compared(1) < _SURE else _PLAIN) == 0:
            return None
        if turn % _ASIDE:
            return chosen
        rate, (number, option) = self.rate, chosen
        near = [
            o for o in others if o.tokens - rate * o.cost > best - _NEAR * rate and costs.compared(o.nodes) < 2 * _SURE
        ]
        return number, min(near, key=lambda o: costs.compared(o.nodes), default=option)

    def _probe(
        self, probes: list[tuple[int, DraftOption, float]], remaining: float, chosen: Choice | None
    ) -> Choice | None:
        """Start a probe of a drafter that does not pay, when it is time for one and its expected loss can be afforded."""
        for number, option, loss in probes:
            estimates = self.sources[number].estimates
            if chosen is not None and chosen[0] == number:
                continue
            estimates.idle += 1
            spent = self.known.lost + max(loss, 0.0)
            if estimates.idle < estimates.wait or remaining < _WORTH or spent > self._budget():
                continue
            self.known.lost = spent
            estimates.idle, estimates.wait = 0, min(2 * estimates.wait, estimates.last_wait)
            estimates.fade()
            self.probing, self.probe_rounds, self.probe_gain = number, _PROBE, 0.0
            return number, option
        return None

    def _budget(self) -> float:
        return self.explore * (self.known.spent + _CREDIT)

    def _debt(self, source: DraftSource, rate: float) -> float:
        """The values that could be emitted while the drafter reads its prompt."""
        return rate * (source.estimates.reading or 0.0) * self.prompt if source.fresh else 0.0

    def _remaining(self, left: int | None) -> float:
        """Values the request is expected to emit still, as longer answers had left here; long ones tend to go on."""
        here = self.emitted[0] - 1
        longer = [cell[0] - here for cell in self.known.lengths if cell[0] > here and cell is not self.emitted]
        expected = (sum(longer) + 4 + here) / (len(longer) + 1)
        return expected if left is None else min(expected, left)

    def learn(self, target: Target, draft: Draft, chosen: Choice | None, seconds: float, drawing: float) -> None:
        """Take in a round.

        Args:
            target: Behind its commit.
            draft: The round's.
            chosen: As chosen.
            seconds: Of the round.
            drawing: Seconds of it in which the draft was made.
        """
        number, option = (-1, DraftOption(0, 0, 1, 1.0, 1.0)) if chosen is None else chosen
        self.known.rounds[number, option.size, option.depth] += 1
        for other, source in enumerate(self.sources):
            source.settle(target, option if other == number else None, draft)
            self.rested[other] = 0 if other == number else self.rested[other] + 1
        if target.pass_costs.measured.count(1) == 0:
            return
        plain = target.pass_costs.plain_seconds()
        steps = [len(path) for path in target.paths if path]
        gained, spent = sum(steps) / max(len(steps), 1), seconds / plain
        self.values = _RECENT * self.values + gained
        self.time = _RECENT * self.time + min(spent, 4 * option.cost)
        self.known.spent += spent
        if chosen is not None:
            self._drew(number, option, drawing / plain, gained)

    def _drew(self, number: int, option: DraftOption, cost: float, gained: float) -> None:
        """Take in the making of a draft, and whether a probe gains."""
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

    def active(self, number: int) -> bool:
        """Whether a drafter is shown the rounds of others, which it may miss."""
        return self.rested[number] < _RESTING or self.probing == number

    def encoded(self, chosen: Choice | None) -> int:
        """A choice as a number from 0."""
        if chosen is None:
            return 0
        number, option = chosen
        return 1 + number + len(self.sources) * (option.depth + 1024 * (option.size + 1))

    def decoded(self, code: int) -> Choice | None:
        """The choice of a number."""
        if code == 0:
            return None
        rest, number = divmod(code - 1, len(self.sources))
        size, depth = divmod(rest, 1024)
        return number, DraftOption(size - 1, depth, depth + 1, 1.0, 1.0)
