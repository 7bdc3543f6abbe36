"""Token-wise rejection sampling along a chain."""

from __future__ import annotations

import torch

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.rules.base import Weights
from mmspec.core.rules.laws import TwoScalar, goes_on, keep_live, laws_of
from mmspec.kernels.law import TINY


class TokenWise(TwoScalar):
    """Accepts a value with probability min(1, p / q), on to the first failure. Exact for chains drawn from q.

    "Fast Inference from Transformers via Speculative Decoding", "Accelerating Large Language Model Decoding with
    Speculative Sampling". What follows a failure has the law [p - q]+, what follows the last value the law p.
    """

    name = "token"
    exact = True
    proven_for = frozenset({("categorical", "without_replacement")})
    chains_only = True

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        laws = laws_of(evidence, draft)
        threshold = (laws.child_p / laws.child_q.clamp_min(TINY)).clamp_max(1)
        alpha, beta = torch.ones_like(threshold), goes_on(threshold, laws.live)
        return Weights(keep_live(threshold, laws.live), "descend", laws.p, laws.q, alpha, beta)
