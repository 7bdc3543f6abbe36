"""SpecKV's signals: features of the last draft correct the expected acceptance of the next draft by a logistic
correction that is learned while decoding, instead of "SpecKV"'s network, so that values per second stay the aim."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch

from mmspec.core.length.round_estimates import shifted
from mmspec.core.round.draft import Draft, Evidence, Verdict, gather_nodes
from mmspec.core.round.sampling import law_of

Features = tuple[float, ...]
_RATE = 0.1  # the step size of the weights
_WINDOW = 0.99  # the decay of a feature's mean and variance
_WIDEST, _MOST = 3.0, 1.5  # the limits of a standardised feature, and of a correction in log-odds
_FIRST = 16  # rounds that are only learned from


def draft_features(draft: Draft, evidence: Evidence, verdict: Verdict, live: Sequence[bool]) -> Features | None:
    """Return the least and the mean confidence, the mean and the largest entropy of the drafter's distributions over
    live rows; None where none is known. For a greedy draft, with none on record, they are the target's on the accepted
    path."""
    scores = draft.law.scores
    if scores is None and evidence.scores is not None and verdict.kind == "path":
        scores = gather_nodes(evidence.scores, verdict.path)
    if scores is None or not any(live):
        return None
    law = law_of(scores[[row for row, alive in enumerate(live) if alive]])
    confidence, entropy = law.amax(-1), torch.special.entr(law).sum(-1)
    rows = torch.stack([confidence.amin(-1), confidence.mean(-1), entropy.mean(-1), entropy.amax(-1)], -1)
    return tuple(rows.mean(0).tolist())


class FeaturePrior:
    """The correction of all acceptances in log-odds: a linear function of standardised features, where a constant
    feature is 0."""

    def __init__(self) -> None:
        self.weights: list[float] = []
        self.rounds = 0
        self._mean: list[float] = []
        self._variance: list[float] = []
        self._squares: list[float] = []

    def shift(self, features: Features | None) -> float:
        """Return 0 until enough rounds were seen."""
        if features is None or self.rounds < _FIRST:
            return 0.0
        return self._shift(self._standardised(features))

    def learn(self, features: Features | None, shares: Sequence[float], accepted: Sequence[int], drafted: int) -> None:
        """Learn from the round after the features; `shares` is the estimated acceptance by depth, before it and without
        correction."""
        if features is None or not drafted:
            return
        if not self._mean:
            self._mean = list(features)
            self.weights, self._variance, self._squares = ([0.0] * len(features) for _ in range(3))
        values = self._standardised(features)
        shift, surprise, tests = self._shift(values), 0.0, 0
        for count in accepted:
            for depth in range(min(count + 1, drafted, len(shares))):
                surprise += (depth < count) - shifted(shares[depth], shift)
                tests += 1
        for place, value in enumerate(values):
            slope = surprise * value / max(tests, 1)
            self._squares[place] += slope * slope
            if slope:
                self.weights[place] += _RATE * slope / sqrt(self._squares[place])
            off = features[place] - self._mean[place]
            self._mean[place] += (1 - _WINDOW) * off
            self._variance[place] = _WINDOW * self._variance[place] + (1 - _WINDOW) * off * off
        self.rounds += 1

    def _standardised(self, features: Features) -> list[float]:
        return [
            min(max((value - mean) / sqrt(variance), -_WIDEST), _WIDEST) if variance > 1e-12 else 0.0
            for value, mean, variance in zip(features, self._mean, self._variance, strict=True)
        ]

    def _shift(self, values: list[float]) -> float:
        total = sum(weight * value for weight, value in zip(self.weights, values, strict=True))
        return min(max(total, -_MOST), _MOST)
