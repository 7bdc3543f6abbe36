"""How many values a drafter put up for judgement."""

from __future__ import annotations

from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.loop import Drafter, DraftState, Target
from mmspec.core.verdict import Verdict


class Counting:
    """A drafter that drafts as another does and counts. Of one request."""

    def __init__(self, drafter: Drafter):
        self.drafter, self.name = drafter, drafter.name
        self._valid: list[Tensor] = []

    def open(self, target: Target) -> CountingState:
        return CountingState(self.drafter.open(target), self._valid)

    def drafted(self) -> int:
        """Values that were judged, over all rows and rounds."""
        return sum(int(valid.sum()) for valid in self._valid)


class CountingState:
    """As the state it is around."""

    def __init__(self, state: DraftState, valid: list[Tensor]):
        self.state, self._valid = state, valid

    @property
    def passes(self) -> int:
        return self.state.passes

    def propose(self, target: Target, keys: Keys) -> Draft:
        draft = self.state.propose(target, keys)
        if draft.valid is not None:
            self._valid.append(draft.valid[:, 1:])  # node 0 is what is known, or pads
        return draft

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.state.observe(target, draft, evidence, verdict)
