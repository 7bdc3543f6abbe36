"""Decoding without drafted tokens, as fast as a stack of schedules makes it."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.rules.base import Rule
from mmspec.core.verdict import Verdict
from mmspec.imagegen.continuous.model import MaskedModel
from mmspec.imagegen.continuous.schedules import Schedules
from mmspec.imagegen.continuous.steps import OwnDraw
from mmspec.imagegen.continuous.target import MaskedTarget


class ScheduledDraw(OwnDraw):
    """The target's own draws under a schedule that is not plain decoding's. Relaxed."""

    name = "own draw, scheduled (relaxed)"
    exact = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSteps(Schedules):
    """Steps of the target alone. With speculation over head time and nothing else exact; else relaxed. See `Schedules`."""

    passes = 0

    @property
    def name(self) -> str:
        """What tables print."""
        return ", ".join(self.parts) or "none"

    @property
    def exact(self) -> bool:
        """Whether every image has the law of plain decoding."""
        return self.plain

    def rule(self, model: MaskedModel) -> Rule:
        return OwnDraw() if self.exact else ScheduledDraw()

    def open(self, target: MaskedTarget) -> ScheduledSteps:
        return self

    def propose(self, target: MaskedTarget, keys: Keys) -> Draft:
        return target.ask(target.next_positions())

    def observe(self, target: MaskedTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        return None
