"""Reflection coupling: continuous values drafted from one Gaussian and judged by another."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft, expand_tree, gather_nodes
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.rules.laws import at, keep_live, live_nodes
from mmspec.core.verdict import Verdict
from mmspec.kernels.reflect import reflect_point, reflect_threshold

SAME_SCALE = 1e-6  # relative; two models reading one noise schedule agree to rounding


class Reflection(Rule):
    """Accepts a vector drawn from N(m_q, s^2) with min(1, p / q), else emits its mirror image, which has the law
    N(m_p, s^2). Exact for chains of isotropic Gaussians of equal scale; accepts with probability 2 Phi(-|m_q - m_p| / 2s).

    "Accelerated Diffusion Models via Speculative Sampling". No residual is ever sampled. A value whose two scales differ
    is rejected unseen and followed by a plain draw from the target, so the output stays exact there too.
    """

    name = "reflection"
    exact = True
    proven_for = frozenset({("gaussian", "without_replacement")})
    reads = "mean"
    chains_only = True

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        if draft.tree.nodes == 1:
            return Weights(evidence.mean.new_zeros(draft.batch, 1), "descend")
        law, parent = draft.law, expand_tree(draft.tree.parent, draft.batch)
        row = law.row.clamp_min(0)[parent]
        mean, scale = gather_nodes(evidence.mean, parent), gather_nodes(evidence.scale, parent)
        threshold = reflect_threshold(draft.value, gather_nodes(law.mean, row), mean, scale)
        comparable = same_scale(gather_nodes(law.scale, row), scale)
        live = live_nodes(evidence, draft)
        mirror = comparable if live is None else comparable & live
        return Weights(keep_live(torch.where(comparable, threshold, 0.0), live), "descend", extra=mirror)

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        node = verdict.node
        mean, scale = at(evidence.mean, node), at(evidence.scale, node)
        fresh = mean + scale * keys.normal(Purpose.BONUS, mean.shape[-1]).to(mean.dtype)
        if draft.tree.nodes > 1:
            # on a chain, the value after an accepted node was rejected if it was drawn at all
            after = (node + 1).clamp_max(draft.tree.nodes - 1)
            mirrored = reflect_point(
                at(draft.value, after), at(draft.law.mean, draft.law.row.clamp_min(0)[node]), mean, scale
            )
            rejected = at(weights.extra, after) & (node + 1 < draft.tree.nodes)
            fresh = torch.where(rejected[:, None], mirrored, fresh)
        verdict.correction = fresh
        return verdict


def same_scale(first: Tensor, second: Tensor) -> Tensor:
    """bool [B, N], whether scales float [B, N, 1] of two models are one but for rounding."""
    return ((first - second).abs() <= SAME_SCALE * second).squeeze(-1)
