"""Drafting only as much as pays: a wrapper that picks the length of every draft by measured time, zero included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from threading import Lock
from time import perf_counter

from mmspec.core.bandit import DraftLengthBandit
from mmspec.core.bandit_request import BanditRequest
from mmspec.core.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.keys import Keys
from mmspec.core.loop import Drafter, DraftState, Target


@dataclass(frozen=True, slots=True)
class DraftLengthTraits:
    """Attributes that a drafter's state may have for a controller of draft lengths, with the defaults of the others.

    deepest: the longest draft that can be asked for; None where the shape is fixed.
    lengths: the lengths worth telling apart, ascending; empty for all up to `deepest`.
    settling: rounds until a draft of another length than before is what it will be.
    may_miss: the state loses nothing by a round without a draft that it is not shown.
    every_round: the state has to draft in every round.
    """

    deepest: int | None = None
    lengths: tuple[int, ...] = ()
    settling: int = 0
    may_miss: bool = False
    every_round: bool = False

    @classmethod
    def of(cls, state: DraftState) -> DraftLengthTraits:
        """The traits of a state."""
        return cls(*(getattr(state, trait.name, trait.default) for trait in fields(cls)))


class Goodput:
    """Wraps a drafter and picks the length of every draft by measured time, zero included. Exact whenever the drafter is.

    drafter: any. States with `deepest` take the length as a third argument of `propose`; others draft in full or not at all.
        States may have `DraftLengthTraits`; a state with `may_miss` skips rounds while it rests.
    explore: the share of time that trying other lengths may cost.   clock: seconds, for tests.
    Raises ValueError for an `explore` outside [0, 1) and, on use, for states with `every_round`.
    See docs/concepts/drafters.md."""

    def __init__(self, drafter: Drafter, *, explore: float = 0.005, clock: Callable[[], float] = perf_counter):
        if not 0 <= explore < 1:
            raise ValueError(
                f"explore: expected a share in [0, 1), got {explore}; 0.005 is half a per cent of the time"
            )
        self.drafter, self.explore, self.clock = drafter, explore, clock
        self.name = f"goodput({drafter.name})"
        self.lock = Lock()
        self.bandits: dict[tuple[int, bool, int], DraftLengthBandit] = {}

    @property
    def levels(self) -> tuple[int, ...] | None:
        """Which of the target's states the drafter reads."""
        return getattr(self.drafter, "levels", None)

    @property
    def from_ids(self) -> bool:
        """See `Drafter`."""
        return getattr(self.drafter, "from_ids", False)

    def open(self, target: Target) -> GoodputState:
        open_lazily = getattr(self.drafter, "open_without_prefill", None) or self.drafter.open
        state = open_lazily(target)
        self.check_state(self.drafter, DraftLengthTraits.of(state))
        return GoodputState(self, state, target)

    def check_state(self, drafter: Drafter, traits: DraftLengthTraits) -> None:
        """Raises ValueError for a drafter that has to draft in every round."""
        if traits.every_round:
            raise ValueError(
                f"drafter: expected one that can leave rounds out, got {drafter.name!r}, which reads values only as it "
                "drafts them; use it without the controller"
            )

    def bandit(self, batch: int, greedy: bool, branches: int = 1, settling: int = 0) -> DraftLengthBandit:
        """What is known of requests of this kind.   branches: passes a value takes, 2 with guidance."""
        key = (batch, greedy, branches)
        if key not in self.bandits:
            self.bandits[key] = DraftLengthBandit(self.explore, settling)
        return self.bandits[key]

    def summary(self) -> list[dict]:
        """Per kind of request: rounds by length, seconds of a round by length, chances of acceptance by depth, and the share
        of time that trying out is thought to have cost."""
        with self.lock:
            return [
                {"batch": batch, "greedy": greedy, "branches": branches, **bandit.summary()}
                for (batch, greedy, branches), bandit in sorted(self.bandits.items())
            ]


class GoodputState:
    """One request. length: of the draft under way.   standing: values each running row had before it, where the last row
    counts; None where all do."""

    def __init__(self, control: Goodput, inner: DraftState, target: Target):
        self.control = control
        self.inner, self.clock, self.lock = inner, control.clock, control.lock
        self.started, self.length, self.standing = None, 0, None
        total, prompt = getattr(target, "total", None), getattr(target, "prompt", None)
        self.most = getattr(target, "most", None) if total is None else total
        self.traits = traits = DraftLengthTraits.of(inner)
        self.request = BanditRequest(
            traits.deepest,
            1 if prompt is None else prompt.shape[1],
            traits.lengths,
            traits.settling,
            whole=total is not None,
            together=total is not None and target.batch > 1,
        )
        # a drafter without a lazy state has read its prompt by now
        greedy, branches = bool(getattr(target, "greedy", True)), getattr(target, "copies", 1)
        with self.lock:
            self.bandit = control.bandit(target.batch, greedy, branches, traits.settling)
            self.bandit.lengths.append(self.request.emitted)

    @property
    def passes(self) -> int:
        return self.inner.passes

    def follow(self, target: Target) -> GoodputState:
        """The state of a request that goes on from this one; what is read by it is read now."""
        state = GoodputState(self.control, self.inner.follow(target), target)
        state.request.fresh = False
        return state

    def propose(self, target: Target, keys: Keys) -> Draft:
        self.started = self.clock()
        emitted = target.emitted
        live = getattr(target, "live", None) or [True] * len(emitted)
        self.request.emitted[0] = max(emitted) + 1
        if self.most is not None:
            standing = {row: n for row, (n, alive) in enumerate(zip(emitted, live, strict=True)) if alive}
            self.request.left = self.most - min(standing.values())
            self.standing = standing if self.request.whole else None
        with self.lock:
            self.length = self.bandit.choose(self.request)
        if agreed := getattr(target, "agreed", None):  # clocks of processes that share a target differ
            self.length = agreed(self.length)
        if self.length == 0:
            return root_only(target.pending)
        return self.inner.propose(target, keys, *(() if self.request.deepest is None else (self.length,)))

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Measures the round and passes it on; the first call, behind the prefill, measures nothing."""
        verified = self.clock()
        # a drafter at rest that loses nothing by it is spared rounds without a draft
        if self.length or self.bandit.paying or not self.traits.may_miss:
            self.inner.observe(target, draft, evidence, verdict)
        # nothing is measured behind the prefill, nor of the round that ends a request
        if self.started is None or getattr(target, "done", False):
            return
        # what a drafter does about a round without a draft is no part of plain decoding
        ended = self.clock() if self.length else verified
        # nor are rows that stand at different places, which cost more than those that never left one another
        plain = not self.length and len(set((self.standing or {}).values())) <= 1
        with self.lock:
            self.bandit.learn(
                self.request, self.length, ended - self.started, self._depths(target), draft.tree.max_depth, plain
            )

    def _depths(self, target: Target) -> list[int]:
        """Accepted values of every row; where the last row counts, by how much the last one moved, less the target's own
        value: a row that was last and leaps ahead only leaves another behind."""
        if self.standing is None:
            return [len(path) - 1 for path in target.paths if path]
        reached = [n + len(path) for row, n in self.standing.items() if (path := target.paths[row])]
        return [min(reached) - min(self.standing.values()) - 1] if reached else []
