"""Tolerance: a draft is what the target's later draws may assume, and never what is emitted."""

from __future__ import annotations

import math

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.verdict import Verdict
from mmspec.imagegen.continuous.evidence import TokenEvidence
from mmspec.imagegen.continuous.ratio_rule import nowhere_else
from mmspec.imagegen.continuous.steps import OwnDraw
from mmspec.imagegen.continuous.window import WindowDraft, settles

_OWN = OwnDraw()


class OwnWithin(Rule):
    """Emits the target's own draws, under the noise it shares with the drafter, up to the first step whose draft is farther
    from them than eps; the own draw of that step is the last to stand, as all before it was close enough. Relaxed for
    eps above 0: later tokens were drawn given drafts that differ from what is emitted by up to eps.

    eps: Euclidean distance of a token, 0 or more. With 0 a draft only counts where it is the target's own value, so the output
    is that of plain decoding for the same noise. For a target that draws every token given the drafts before it.
    plain: whether the target's draws are those of plain decoding; a schedule may relax them.
    Raises ValueError for an eps out of range.
    """

    proven_for = frozenset({("gaussian", "without_replacement"), ("none", "none")})
    reads = "mean"

    def __init__(self, eps: float, plain: bool = True):
        if not 0 <= eps < math.inf:
            raise ValueError(f"tolerance: expected a distance of 0 or more, got {eps}; 0 gives the target's own output")
        self.eps, self.exact = eps, eps == 0 and plain
        self.name = "own draw" if self.exact else "own within tolerance (relaxed)"

    def on(self, draft: Draft, evidence: Evidence) -> Rule:
        return self if isinstance(draft, WindowDraft) else _OWN

    def weigh(self, evidence: TokenEvidence, draft: WindowDraft) -> Weights:
        near = (draft.value - evidence.own).norm(dim=-1) <= self.eps
        return Weights((near & (draft.step >= 0) & ~evidence.bad).double(), "mask")

    def resample(
        self, evidence: TokenEvidence, draft: WindowDraft, weights: Weights, verdict: Verdict, keys: Keys
    ) -> Verdict:
        put = settles(draft, verdict.keep, truncate=True)
        verdict.keep = verdict.keep & put
        verdict.correction = nowhere_else(evidence.own, put)
        return verdict
