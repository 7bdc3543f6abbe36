from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules.base import Rule, UnsupportedCombination, Weights, live_nodes
from mmspec.core.round.rules.relaxed import RelaxedRule, accepting, exact_rule_for
from mmspec.core.round.rules.target_match import TargetMatch
from mmspec.io.validation import number

_MATCH = TargetMatch()


class Judge(RelaxedRule):
    """Accepts a drafted token that passes the exact test or that a head judges correct. Relaxed.

    "Judge Decoding: Faster Speculative Sampling Requires Going Beyond Model Alignment". `accepts` maps the target's
    last hidden state [B, N, H] at the drafted token itself to the probability of a correct continuation, float [B, N],
    accepted above the threshold; from 1 on the rule is exact. The first token that both reject ends the accepted
    prefix, in a greedy request too. `width` is H, None for any."""

    name = "judge (relaxed)"
    chains_only = True

    def __init__(self, accepts: Callable[[Tensor], Tensor], threshold: float = 0.5, width: int | None = None):
        self.accepts, self.width = accepts, width
        self.threshold = number("threshold", threshold, 0, infinite=True)

    def rule_for(self, draft: Draft, evidence: Evidence) -> Rule:
        return self

    def check_evidence(self, evidence: Evidence) -> None:
        super().check_evidence(evidence)
        width = None if evidence.hidden is None else evidence.hidden.shape[-1]
        if width is None or self.width not in (None, width):
            raise UnsupportedCombination(
                f"rule {self.name!r}: expected the target's last hidden states of width {self.width}, got "
                f"{'none' if width is None else width}; train a head for this target, and draft from its last states alone"
            )

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        exact = _MATCH if evidence.greedy else exact_rule_for(draft)
        weights = exact.weigh(evidence, draft)
        if draft.tree.nodes == 1 or self.threshold >= 1:
            return weights
        # node i is judged by the state at node i, which has read its token; the exact test reads its parent
        right = self.accepts(evidence.hidden).to(weights.threshold.dtype) > self.threshold
        if evidence.bad is not None:
            right = right & ~evidence.bad
        weights.threshold = accepting(weights, draft, right, live_nodes(evidence, draft))
        return weights

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        if evidence.greedy:
            return _MATCH.resample(evidence, draft, weights, verdict, keys)
        return super().resample(evidence, draft, weights, verdict, keys)
