"""Block verification along a chain of continuous values."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.rules.laws import at, keep_live, law_row, live_nodes
from mmspec.core.rules.reflection import same_scale
from mmspec.core.verdict import Verdict
from mmspec.kernels.gaussian_block import excess_draw, gaussian_block_thresholds
from mmspec.kernels.reflect import log_ratio


class GaussianBlock(Rule):
    """Accepts the longest prefix whose joint test passes. Exact for chains of isotropic Gaussians of equal scale, and
    never shorter on average than `Reflection`.

    "Block Verification Accelerates Speculative Decoding" with densities for probabilities, as "Accelerating Speculative
    Diffusions via Block Verification" does: with P_i = min(1, P_{i-1} p/q) a prefix of i values is kept with probability
    P_i given its values, by induction from the end: P(more than i) = integral of min(q, P_i p) = P_i - Z_i with
    Z_i = integral of [P_i p - q]+, and P_i - Z_i + (1 - P_i + Z_i) Z_i / (Z_i + 1 - P_i) = P_i. What follows has the law
    min(q, P_i p) if drafted and [P_i p - q]+ if not, P_i p together. For Gaussians of one scale Z_i is a difference of two
    normal distribution functions, and the residual is a normal across the line of the means and known along it.
    A value whose two scales differ ends the draft before it, so the output stays exact there too.
    """

    name = "gaussian_block"
    exact = True
    proven_for = frozenset({("gaussian", "without_replacement")})
    reads = "mean"
    chains_only = True
    looks_ahead = True

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        if draft.tree.nodes == 1:
            return Weights(evidence.mean.new_zeros(draft.batch, 1), "post")
        row = law_row(draft)[:-1]  # on a chain the parent of node i + 1 is node i
        mean, scale = evidence.mean[:, :-1].double(), evidence.scale[:, :-1].double()
        draft_mean = draft.law.mean[:, row].double()
        drawn = same_scale(draft.law.scale[:, row], evidence.scale[:, :-1])
        live = live_nodes(evidence, draft)
        drawn = (drawn if live is None else drawn & live[:, 1:]).cumprod(-1).bool()
        gap = ((mean - draft_mean) / scale).norm(dim=-1)
        ratio = log_ratio(draft.value[:, 1:].double(), draft_mean, mean, scale)
        threshold, weight = gaussian_block_thresholds(ratio, gap, drawn)
        threshold = keep_live(threshold, pad(drawn, (1, 0), value=True))
        return Weights(threshold, "post", alpha=weight, beta=pad(drawn, (0, 1)).double(), extra=pad(gap, (0, 1)))

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        node = verdict.node
        mean, scale = at(evidence.mean, node), at(evidence.scale, node)
        noise = keys.normal(Purpose.BONUS, mean.shape[-1]).to(mean.dtype)
        if draft.tree.nodes > 1:
            # the value after the kept prefix was drawn, or nothing was
            line = torch.nn.functional.normalize(mean - at(draft.law.mean, law_row(draft)[node]), dim=-1)
            uniform = keys.uniform(Purpose.RESIDUAL, 1)[:, 0]
            along = excess_draw(at(weights.alpha, node), at(weights.extra, node), uniform).to(mean.dtype)
            beside = noise + (along - (noise * line).sum(-1))[:, None] * line
            noise = torch.where(at(weights.beta, node)[:, None] > 0, beside, noise)
        verdict.correction = mean + scale * noise
        return verdict
