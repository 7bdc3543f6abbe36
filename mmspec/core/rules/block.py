"""Block verification along a chain."""

from __future__ import annotations

import torch

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.rules.base import Weights
from mmspec.core.rules.laws import TwoScalar, goes_on, keep_live, laws_of
from mmspec.kernels.block import block_thresholds
from mmspec.kernels.law import TINY


class BlockVerification(TwoScalar):
    """Accepts the longest prefix whose joint test passes. Exact for chains drawn from q, and never shorter on average than
    token-wise rejection.

    "Block Verification Accelerates Speculative Decoding". With P_0 = 1, P_i = min(1, P_{i-1} p/q) and
    Z_i = sum [P_i p - q]+, prefix i passes with probability Z_i / (Z_i + 1 - P_i), the last drawn one with P_i; what
    follows prefix i has the law [P_i p - q]+, what follows the last value the law p.
    """

    name = "block"
    exact = True
    proven_for = frozenset({("categorical", "without_replacement")})
    chains_only = True
    looks_ahead = True

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        laws = laws_of(evidence, draft)
        ratio = (laws.child_p / laws.child_q.clamp_min(TINY))[:, 1:]
        drawn = None if laws.live is None else laws.live[:, 1:]
        ratio = ratio if drawn is None else torch.where(drawn, ratio, 1.0)
        q = laws.q.index_select(1, laws.row[:-1])
        threshold, weight = block_thresholds(ratio, laws.p, q, drawn)
        threshold = keep_live(threshold, laws.live)
        return Weights(threshold, "post", laws.p, laws.q, weight, goes_on(threshold, laws.live))
