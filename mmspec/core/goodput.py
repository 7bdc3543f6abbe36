"""Drafting only as much as pays: a wrapper that picks the length of every draft by measured time, zero included."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import perf_counter

from mmspec.core.draft import Draft, root_only
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.ledger import Ledger, Seat
from mmspec.core.loop import Drafter, DraftState, Target
from mmspec.core.verdict import Verdict


class Goodput:
    """Any drafter with drafts of the length that yields most tokens per second, which may be none.

    Each round drafts the n that maximises E[tokens(n)] / E[seconds(n)]. Tokens: how often each depth was accepted, over
    rows and requests, with forgetting. Seconds: rounds as they were measured, drafting, target, verification and the drafter's
    bookkeeping together. A request's first draft also has to earn what its drafter must read before it, over the tokens that
    are still expected; until then the drafter costs next to nothing. A drafter that does not pay is tried again at growing
    intervals, and all trying out together may cost at most the share `explore` of the time.

    drafter: any; its states should be lazy (`open_without_prefill`, where it has one, is called instead of `open`). States
        with `deepest` and `longest` are told how long a draft to make; of others it is all or nothing. States that say
        `may_miss` are not shown rounds without a draft while drafting does not pay.
    explore: the share of time that trying out other lengths may cost.   clock: seconds, for tests.

    Made once and given to every request: it learns as they run, apart for each batch size and for greedy and sampled
    requests, and may be shared by interleaved requests and threads. Needs a target that keeps `paths` and ends its commits
    in a transfer to the host, as TextTarget does, or times would mean nothing on a GPU.

    Exact whenever the drafter is: n depends on earlier rounds alone and is fixed before anything of the draft is drawn, and a
    round keeps the target's law for every n. Greedy output never depends on it; which words of the law a seed gives does,
    as it depends on where drafts end, and so may differ between two runs.
    Raises ValueError for an `explore` outside [0, 1).
    """

    def __init__(self, drafter: Drafter, *, explore: float = 0.005, clock: Callable[[], float] = perf_counter):
        if not 0 <= explore < 1:
            raise ValueError(
                f"explore: expected a share in [0, 1), got {explore}; 0.005 is half a per cent of the time"
            )
        self.drafter, self.explore, self.clock = drafter, explore, clock
        self.name = f"goodput({drafter.name})"
        self.lock = Lock()
        self.ledgers: dict[tuple[int, bool], Ledger] = {}

    @property
    def levels(self) -> tuple[int, ...] | None:
        """Which of the target's states the drafter reads."""
        return getattr(self.drafter, "levels", None)

    def open(self, target: Target) -> GoodputState:
        open_lazily = getattr(self.drafter, "open_without_prefill", None) or self.drafter.open
        return GoodputState(self, open_lazily(target), target)

    def ledger(self, batch: int, greedy: bool) -> Ledger:
        """What is known of requests of this kind."""
        key = (batch, greedy)
        if key not in self.ledgers:
            self.ledgers[key] = Ledger(self.explore)
        return self.ledgers[key]

    def summary(self) -> list[dict]:
        """Per kind of request: rounds by length, seconds of a round by length, chances of acceptance by depth, and the share
        of time that trying out is thought to have cost."""
        with self.lock:
            return [{"batch": b, "greedy": g, **ledger.summary()} for (b, g), ledger in sorted(self.ledgers.items())]


class GoodputState:
    """One request. length: of the draft under way."""

    def __init__(self, control: Goodput, inner: DraftState, target: Target):
        self.inner, self.clock, self.lock = inner, control.clock, control.lock
        self.started, self.length = None, 0
        self.most = getattr(target, "most", None)
        prompt = getattr(target, "prompt", None)
        self.seat = Seat(getattr(inner, "deepest", None), 1 if prompt is None else prompt.shape[1])
        # a drafter without a lazy state has read its prompt by now
        with self.lock:
            self.ledger = control.ledger(target.batch, bool(getattr(target, "greedy", True)))
            self.ledger.lengths.append(self.seat.emitted)

    @property
    def passes(self) -> int:
        return self.inner.passes

    def propose(self, target: Target, keys: Keys) -> Draft:
        self.started = self.clock()
        emitted = target.emitted
        live = getattr(target, "live", None) or [True] * len(emitted)
        self.seat.emitted[0] = max(emitted) + 1
        if self.most is not None:
            self.seat.left = self.most - min(n for n, alive in zip(emitted, live, strict=True) if alive)
        with self.lock:
            self.length = self.ledger.choose(self.seat)
        if self.length == 0:
            return root_only(target.pending)
        if self.seat.deepest is not None:
            self.inner.longest = self.length
        return self.inner.propose(target, keys)

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Measures the round and passes it on; the first call, behind the prefill, measures nothing."""
        verified = self.clock()
        # a drafter at rest that loses nothing by it is spared rounds without a draft
        if self.length or self.ledger.paying or not getattr(self.inner, "may_miss", False):
            self.inner.observe(target, draft, evidence, verdict)
        if self.started is None:
            return
        # what a drafter does about a round without a draft is no part of plain decoding
        ended = self.clock() if self.length else verified
        depths = [len(path) - 1 for path in target.paths if path]
        with self.lock:
            self.ledger.learn(self.seat, self.length, ended - self.started, depths, draft.tree.max_depth)
