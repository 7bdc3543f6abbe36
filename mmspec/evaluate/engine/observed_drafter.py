"""A wrapper around a drafter that reports every draft and its time."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.core.loop import Drafter, DraftState, Target

DraftObserver = Callable[[Draft, float], None]


class ObservedDrafter:
    """A drafter that passes all calls on to another drafter and reports its drafts.

    Args:
        drafter: The drafter.
        on_draft: A function that is called with every draft and its seconds, including those of `observe` before it.
        readings: The number of times that the drafter reads the prompt.

    Attributes:
        opened: The seconds of every reading of the prompt.
        rows: The length of the drafter's cache after the prompt; empty for a drafter without a cache.
    """

    def __init__(self, drafter: Drafter, on_draft: DraftObserver, readings: int = 1):
        self.drafter, self.name, self.levels = drafter, drafter.name, getattr(drafter, "levels", None)
        self.on_draft, self.readings = on_draft, readings
        self.opened: list[float] = []
        self.rows: list[int] = []

    def open(self, target: Target) -> ObservedDraftState:
        for _ in range(self.readings):
            began = perf_counter()
            state = self.drafter.open(target)
            self.opened.append(perf_counter() - began)
        lengths = getattr(getattr(state, "cache", None), "lengths", None)
        self.rows += [max(lengths)] if lengths else []
        return ObservedDraftState(state, self.on_draft)


class ObservedDraftState:
    """The draft state of an observed drafter."""

    def __init__(self, state: DraftState, on_draft: DraftObserver):
        self.state, self.on_draft, self.seconds = state, on_draft, 0.0

    @property
    def passes(self) -> int:
        return self.state.passes

    def propose(self, target: Target, keys: Keys) -> Draft:
        began = perf_counter()
        draft = self.state.propose(target, keys)
        self.on_draft(draft, perf_counter() - began + self.seconds)
        return draft

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        began = perf_counter()
        self.state.observe(target, draft, evidence, verdict)
        self.seconds = perf_counter() - began
