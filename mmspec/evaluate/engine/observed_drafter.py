"""Wrappers around drafters: drafts that are reported with their time, and a memory that the requests of a row share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import Drafter, DraftState, Target

DraftObserver = Callable[[Draft, float], None]


class ObservedDrafter:
    """A drafter that passes all calls on to another drafter. It calls `on_draft` with every draft and its seconds,
    including those of `observe` before it. `readings` counts how often the drafter reads the prompt. `clock` gives
    seconds, for a GPU once it has finished its work.

    `opened` has the seconds of every reading; `rows` is the length of the drafter's cache after the prompt, empty
    without a cache."""

    def __init__(
        self, drafter: Drafter, on_draft: DraftObserver, readings: int = 1, clock: Callable[[], float] = perf_counter
    ):
        self.drafter, self.name, self.levels = drafter, drafter.name, getattr(drafter, "levels", None)
        self.on_draft, self.readings, self.clock = on_draft, readings, clock
        self.opened: list[float] = []
        self.rows: list[int] = []

    def open(self, target: Target) -> ObservedDraftState:
        for _ in range(self.readings):
            began = self.clock()
            state = self.drafter.open(target)
            self.opened.append(self.clock() - began)
        lengths = getattr(getattr(state, "cache", None), "lengths", None)
        self.rows += [max(lengths)] if lengths else []
        return ObservedDraftState(state, self.on_draft, self.clock)


class ObservedDraftState:
    def __init__(self, state: DraftState, on_draft: DraftObserver, clock: Callable[[], float]):
        self.state, self.on_draft, self.clock, self.seconds = state, on_draft, clock, 0.0

    @property
    def passes(self) -> int:
        return self.state.passes

    def propose(self, target: Target, keys: Keys) -> Draft:
        began = self.clock()
        draft = self.state.propose(target, keys)
        self.on_draft(draft, self.clock() - began + self.seconds)
        return draft

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        began = self.clock()
        self.state.observe(target, draft, evidence, verdict)
        self.seconds = self.clock() - began


class SharedMemory:
    """A drafter whose requests share a memory, but for the first, which warms up with a prompt that is timed later.
    Runs of several repeats would meet their own answers again: bench it with a single repeat."""

    def __init__(self, alone: Any, shared: Any):
        self.alone, self.shared, self.warm = alone, shared, False
        self.name, self.levels = f"{alone.name}, shared", getattr(alone, "levels", None)
        self.from_ids = getattr(alone, "from_ids", False)

    def open(self, target: Any) -> Any:
        chosen, self.warm = self.shared if self.warm else self.alone, True
        return chosen.open(target)


def sharing(field: str, memory: Callable[[], Any]) -> Callable[[Any], SharedMemory]:
    """Return a change of a drafter that lets the requests of a row share a memory, which `memory` makes and `field` of
    the drafter holds."""
    return lambda drafter: SharedMemory(drafter, replace(drafter, **{field: memory()}))
