from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter

from mmspec.core.length.draft_options import DraftSource, live_rows
from mmspec.core.length.goodput import Goodput
from mmspec.core.length.portfolio_choice import Choice, PortfolioChoice, PortfolioEstimates
from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import Drafter, DraftState, Target, can_follow, opens_from_ids


class GoodputPortfolio(Goodput):
    """Picks the fastest drafter, length and tree, or plain decoding. The target must have `pass_costs`. Drafters that
    read its states must read the same layers. Exact whenever the drafters are. `explore` is the share of time for
    probes."""

    def __init__(
        self, drafters: Sequence[Drafter], *, explore: float = 0.005, clock: Callable[[], float] = perf_counter
    ):
        self.drafters = tuple(drafters)
        if not self.drafters:
            raise ValueError("drafters: expected at least one drafter, got none; use drafter=None to decode plainly")
        super().__init__(self.drafters[0], explore=explore, clock=clock)
        self.name = f"goodput({', '.join(drafter.name for drafter in self.drafters)})"
        read = {getattr(drafter, "levels", None) for drafter in self.drafters if not opens_from_ids(drafter)}
        if len(read) > 1:
            raise ValueError(
                f"drafters: expected drafters that read the same states, got levels {sorted(map(str, read))}; "
                "use one of them"
            )
        self._levels = next(iter(read), None)
        self.kinds: dict[tuple[int, bool, int], PortfolioEstimates] = {}

    @property
    def levels(self) -> tuple[int, ...] | None:
        return self._levels

    @property
    def from_ids(self) -> bool:
        return all(map(opens_from_ids, self.drafters))

    def open(self, target: Target) -> PortfolioState:
        return PortfolioState(self, [self.open_state(drafter, target) for drafter in self.drafters], target)

    def estimates(self, target: Target) -> PortfolioEstimates:
        kind = target.batch, bool(getattr(target, "greedy", True)), getattr(target, "copies", 1)
        with self.lock:
            return self.kinds.setdefault(kind, PortfolioEstimates(len(self.drafters)))

    def summary(self) -> list[dict]:
        return [
            {"batch": batch, "greedy": greedy, "branches": branches, **self._summary(known)}
            for (batch, greedy, branches), known in sorted(self.kinds.items())
        ]

    def _summary(self, known: PortfolioEstimates) -> dict:
        depths, drafters = Counter(), {drafter.name: Counter() for drafter in self.drafters}
        for (number, size, depth), count in known.rounds.items():
            depths[depth] += count
            if number >= 0:
                drafters[self.drafters[number].name][size, depth] += count
        return {
            "rounds": dict(sorted(depths.items())),
            "drafters": {name: dict(sorted(counts.items())) for name, counts in drafters.items()},
            "accepted": {
                drafter.name: estimates.accepted()
                for drafter, estimates in zip(self.drafters, known.drafters, strict=True)
            },
            "explored": known.lost / known.spent if known.spent else 0.0,
        }


class PortfolioState:
    def __init__(self, control: GoodputPortfolio, states: list[DraftState], target: Target):
        self.control, self.states, self.clock = control, states, control.clock
        self.known = control.estimates(target)
        pairs = zip(states, self.known.drafters, strict=True)
        self.sources = [DraftSource(state, estimates, target.batch) for state, estimates in pairs]
        prompt, self.most = getattr(target, "prompt", None), getattr(target, "most", None)
        self.prompt = 1 if prompt is None else max(prompt.shape[1], 1)
        self.choice = PortfolioChoice(self.sources, self.known, control.explore, self.prompt)
        self.known.lengths.append(self.choice.emitted)
        self.started, self.drawing = None, 0.0
        self.chosen: Choice | None = None
        target.adapts = True  # the request follows measured times anyway

    @property
    def passes(self) -> int:
        return sum(state.passes for state in self.states)

    @property
    def inner(self) -> DraftState | None:
        """Decides whether a request can continue this request; drafters with `from_ids` open anew."""
        states = [
            s for s, drafter in zip(self.states, self.control.drafters, strict=True) if not opens_from_ids(drafter)
        ]
        return next((state for state in states if not can_follow(state)), states[0] if states else None)

    def follow(self, target: Target) -> PortfolioState:
        control = self.control
        pairs = list(zip(self.states, control.drafters, strict=True))
        states = [
            control.open_state(drafter, target) if opens_from_ids(drafter) else state.follow(target)
            for state, drafter in pairs
        ]
        new = PortfolioState(control, states, target)
        for source, (_, drafter) in zip(new.sources, pairs, strict=True):
            source.fresh = source.fresh and opens_from_ids(drafter)
        return new

    def propose(self, target: Target, keys: Keys) -> Draft:
        self.started = self.clock()
        emitted = [n for n, alive in zip(target.emitted, live_rows(target), strict=True) if alive]
        self.choice.emitted[0] = max(emitted) + 1
        for source in self.sources:
            source.look(target)
        with self.control.lock:
            chosen = self.choice.choose(target, None if self.most is None else self.most - min(emitted))
        if agreed := getattr(target, "agreed", None):  # clocks of processes that share a target differ
            own = self.choice.encoded(chosen)
            if (shared := agreed(own)) != own:
                chosen = self.choice.decoded(shared)
        self.chosen = chosen
        if chosen is None:
            return root_only(target.pending)
        number, option = chosen
        started = self.clock()
        draft = self.sources[number].propose(target, keys, option)
        self.drawing = self.clock() - started
        return draft

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        ended = self.clock()
        for number, (state, source) in enumerate(zip(self.states, self.sources, strict=True)):
            # while it rests, a drafter that may miss rounds is not shown those of other drafters
            if not source.may_miss or self.choice.active(number):
                state.observe(target, draft, evidence, verdict)
        if self.started is None or getattr(target, "done", False):
            return
        with self.control.lock:
            self.choice.learn(target, draft, self.chosen, ended - self.started, self.drawing)
