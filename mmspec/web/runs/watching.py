"""What a drafter put up for judgement in the last round, for those who draw it."""

from __future__ import annotations

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.loop import Drafter, DraftState, Target
from mmspec.core.verdict import Verdict


class Watching:
    """A drafter that drafts as another does. Of one request.   last: its last draft, None before the first."""

    def __init__(self, drafter: Drafter):
        self.drafter, self.name = drafter, drafter.name
        self.last: Draft | None = None

    def open(self, target: Target) -> WatchedState:
        return WatchedState(self, self.drafter.open(target))


class WatchedState:
    """As the state it is around."""

    def __init__(self, watching: Watching, state: DraftState):
        self.watching, self.state = watching, state

    @property
    def passes(self) -> int:
        return self.state.passes

    def propose(self, target: Target, keys: Keys) -> Draft:
        self.watching.last = draft = self.state.propose(target, keys)
        return draft

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.state.observe(target, draft, evidence, verdict)
