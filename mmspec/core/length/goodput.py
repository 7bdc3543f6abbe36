from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from threading import Lock
from time import perf_counter
from typing import NamedTuple

from mmspec.core.drafting.pair_state import PairState
from mmspec.core.drafting.request_shape import ON_CPU
from mmspec.core.length.bandit import DraftLengthBandit
from mmspec.core.length.bandit_request import BanditRequest
from mmspec.core.length.draft_features import FeaturePrior, Features, draft_features
from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import Drafter, DraftState, Target, opens_from_ids
from mmspec.io.validation import number


@dataclass(frozen=True, slots=True)
class DraftLengthTraits:
    """Attributes that a drafter's state may have for a controller of draft lengths, with the defaults for other states."""

    deepest: int | None = None  # the longest draft; None for a fixed shape
    lengths: tuple[int, ...] = ()  # the lengths worth distinguishing, ascending; empty for all up to `deepest`
    settling: int = 0  # rounds after a change of length until drafts have their usual acceptance
    may_miss: bool = False  # the state loses nothing if it is not shown a round without a draft
    every_round: bool = False  # the state has to draft in every round

    @classmethod
    def of(cls, state: DraftState) -> DraftLengthTraits:
        return cls(*(getattr(state, trait.name, trait.default) for trait in fields(cls)))


class Goodput:
    """A drafter whose draft lengths follow measured throughput, zero included. Exact whenever the drafter is.

    States with `deepest` take the length as a third argument of `propose`; others draft in full or not at all. A state
    with `may_miss` is skipped while it rests. See docs/concepts/drafters.md.

    Args:
        drafter: Any drafter whose state may skip rounds. Its state may have the attributes of `DraftLengthTraits`.
        explore: The share of time that trying other lengths may cost.
        clock: The clock, in seconds; replaced in tests.
        prior: Whether features of the last draft correct the expected acceptance of the next (as SpecKV).

    Raises:
        ValueError: `explore` is outside [0, 1), or, on use, the state has `every_round`.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        explore: float = 0.005,
        clock: Callable[[], float] = perf_counter,
        prior: bool = False,
    ):
        if isinstance(drafter, type) or not hasattr(drafter, "name"):
            raise ValueError(
                f"drafter: expected a drafter, got {drafter!r:.60}; pass a drafter, such as PromptLookup()"
            )
        if not 0 <= number("explore", explore) < 1:
            raise ValueError(
                f"explore: expected a share in [0, 1), got {explore}; 0.005 is half a per cent of the time"
            )
        self.drafter, self.explore, self.clock, self.prior = drafter, explore, clock, prior
        self.name = f"goodput({drafter.name})"
        self.lock = Lock()
        self.bandits: dict[tuple[int, bool, int], DraftLengthBandit] = {}

    @property
    def levels(self) -> tuple[int, ...] | None:
        """The layers of the target whose states the drafter reads."""
        return getattr(self.drafter, "levels", None)

    @property
    def from_ids(self) -> bool:
        """Whether the drafter opens from token ids alone, see `Drafter`."""
        return opens_from_ids(self.drafter)

    def open(self, target: Target) -> GoodputState:
        return GoodputState(self, self.open_state(self.drafter, target), target)

    def open_state(self, drafter: Drafter, target: Target) -> DraftState:
        """Return the state of a drafter, which reads its prompt before its first draft, in the shape that was set for it."""
        state = (getattr(drafter, "open_without_prefill", None) or drafter.open)(target)
        if isinstance(state, PairState) and state.shape is ON_CPU:  # the controller itself weighs sizes against costs
            state.resize(state.drafter.shapes[0])
        self.check_state(drafter, DraftLengthTraits.of(state))
        return state

    def check_state(self, drafter: Drafter, traits: DraftLengthTraits) -> None:
        """Refuse a drafter that has to draft in every round."""
        if traits.every_round:
            raise ValueError(
                f"drafter: expected a drafter that can skip rounds, got {drafter.name!r}, which reads values only as it "
                "drafts them; use it without the controller"
            )

    def bandit(self, batch: int, greedy: bool, branches: int = 1, settling: int = 0) -> DraftLengthBandit:
        """Return the bandit for requests of this kind. `branches` is the passes per value, 2 with guidance."""
        key = (batch, greedy, branches)
        if key not in self.bandits:
            self.bandits[key] = DraftLengthBandit(self.explore, settling, FeaturePrior() if self.prior else None)
        return self.bandits[key]

    def summary(self) -> list[dict]:
        """Return per kind of request: rounds and seconds by length, acceptance by depth, and the share of time explored."""
        with self.lock:
            return [
                {"batch": batch, "greedy": greedy, "branches": branches, **bandit.summary()}
                for (batch, greedy, branches), bandit in sorted(self.bandits.items())
            ]


class TargetTraits(NamedTuple):
    """The facts of a target that a controller reads. Targets of users may leave any of them out."""

    total: int | None  # values of a request that is generated whole, in windows; None for texts
    most: int | None  # values that a request may have
    prompt: int  # tokens, 1 where embeddings alone have no ids
    greedy: bool
    copies: int  # rows that share a prompt

    @classmethod
    def of(cls, target: object) -> TargetTraits:
        total, prompt = getattr(target, "total", None), getattr(target, "prompt", None)
        return cls(
            total,
            getattr(target, "most", None) if total is None else total,
            1 if prompt is None else max(prompt.shape[1], 1),
            bool(getattr(target, "greedy", True)),
            getattr(target, "copies", 1),
        )


class GoodputState:
    """The state of one request. `standing` maps each running row to the number of its values before the draft, where
    the slowest row counts; it is None where all rows count."""

    features: Features | None = None

    def __init__(self, control: Goodput, inner: DraftState, target: Target):
        self.control, self.inner = control, inner
        self.clock, self.lock = control.clock, control.lock
        self.started, self.length = None, 0
        self.standing = None
        own = TargetTraits.of(target)
        self.most = own.most
        self.traits = traits = DraftLengthTraits.of(inner)
        is_whole = own.total is not None
        self.request = BanditRequest(
            traits.deepest,
            own.prompt,
            traits.lengths,
            traits.settling,
            whole=is_whole,
            together=is_whole and target.batch > 1,
        )
        # a drafter without `open_without_prefill` has read its prompt by now
        with self.lock:
            self.bandit = control.bandit(target.batch, own.greedy, own.copies, traits.settling)
            self.bandit.lengths.append(self.request.emitted)

    @property
    def passes(self) -> int:
        return self.inner.passes

    def follow(self, target: Target) -> GoodputState:
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
            if self.bandit.prior is not None:
                self.request.shift = self.bandit.prior.shift(self.features)
            self.length = self.bandit.choose(self.request)
        if agreed := getattr(target, "agreed", None):  # clocks of processes that share a target differ
            self.length = agreed(self.length)
        if self.length == 0:
            return root_only(target.pending)
        return self.inner.propose(target, keys, *(() if self.request.deepest is None else (self.length,)))

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        verified = self.clock()
        # while it rests, a drafter that may miss rounds is not shown those without a draft
        if self.length or self.bandit.paying or not self.traits.may_miss:
            self.inner.observe(target, draft, evidence, verdict)
        before = self.features
        if self.bandit.prior is not None:
            self.features = draft_features(draft, evidence, verdict, [bool(path) for path in target.paths])
        if self.started is None or getattr(target, "done", False):
            return  # neither the prefill nor the last round of a request is measured
        ended = self.clock() if self.length else verified  # plain decoding does not include the drafter's `observe`
        # rows at different positions cost more than rows of plain decoding, which stay together
        plain = not self.length and len(set((self.standing or {}).values())) <= 1
        depths, levels = self._depths(target), draft.tree.max_depth
        with self.lock:
            if self.bandit.prior is not None:
                self.bandit.prior.learn(before, self.bandit.acceptance.shares(levels), depths, levels)
            self.bandit.learn(self.request, self.length, ended - self.started, depths, levels, plain)

    def _depths(self, target: Target) -> list[int]:
        if self.standing is None:
            return [len(path) - 1 for path in target.paths if path]
        reached = [n + len(path) for row, n in self.standing.items() if (path := target.paths[row])]
        return [min(reached) - min(self.standing.values()) - 1] if reached else []
