from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Draft, Evidence, Verdict, expand_tree, gather_nodes
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules.base import Rule, Weights, at_node, keep_live, law_row, live_nodes
from mmspec.kernels.block_verification import excess_draw, gaussian_block_thresholds
from mmspec.kernels.reflection_coupling import log_ratio, reflect_point, reflect_threshold
from mmspec.methods import method

SAME_SCALE = 1e-6  # relative; two models with the same noise schedule agree up to rounding


@method(
    "reflection",
    domain="continuous",
    kind="rule",
    title="reflection coupling",
    exact=True,
    about="a rejected vector is replaced by its mirror image",
    paper="Accelerated Diffusion Models via Speculative Sampling",
    order=8,
)
class Reflection(Rule):
    """Accepts a vector drawn from N(m_q, s^2) with min(1, p / q), else emits its mirror image.

    "Accelerated Diffusion Models via Speculative Sampling". The mirror image has the distribution N(m_p, s^2), so no
    residual is sampled. Exact for chains of isotropic Gaussians of equal scale; the acceptance rate is 2 Phi(-|m_q -
    m_p| / 2s). A value whose scales differ is rejected and followed by a plain draw from the target, so the output
    stays exact.
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
        mean, scale = at_node(evidence.mean, node), at_node(evidence.scale, node)
        fresh = mean + scale * keys.normal(Purpose.BONUS, mean.shape[-1]).to(mean.dtype)
        if draft.tree.nodes > 1:
            # on a chain, a value drawn after the last accepted node was rejected
            after = (node + 1).clamp_max(draft.tree.nodes - 1)
            mirrored = reflect_point(
                at_node(draft.value, after), at_node(draft.law.mean, draft.law.row.clamp_min(0)[node]), mean, scale
            )
            rejected = at_node(weights.extra, after) & (node + 1 < draft.tree.nodes)
            fresh = torch.where(rejected[:, None], mirrored, fresh)
        verdict.correction = fresh
        return verdict


def same_scale(first: Tensor, second: Tensor) -> Tensor:
    """Compare [B, N, 1] up to rounding, bool [B, N]."""
    return ((first - second).abs() <= SAME_SCALE * second).squeeze(-1)


@method(
    "gaussian_block",
    domain="continuous",
    kind="rule",
    title="block verification of Gaussians",
    exact=True,
    about="the vectors of a chain are tested jointly",
    paper="Accelerating Speculative Diffusions via Block Verification",
    order=9,
)
class GaussianBlock(Rule):
    """Accepts the longest prefix whose joint test passes. Exact for chains of isotropic Gaussians of equal scale.

    "Accelerating Speculative Diffusions via Block Verification": block verification with densities, never shorter on
    average than `Reflection`. With P_0 = 1, P_i = min(1, P_{i-1} p / q) and Z_i the integral of [P_i p - q]+, prefix i
    passes with probability Z_i / (Z_i + 1 - P_i), the last prefix with P_i. For Gaussians of equal scale Z_i is a
    difference of two normal distribution functions; the residual is normal across the line of the means and
    one-dimensional along it. A value whose scales differ ends the draft before it, so the output stays exact.
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
        mean, scale = at_node(evidence.mean, node), at_node(evidence.scale, node)
        noise = keys.normal(Purpose.BONUS, mean.shape[-1]).to(mean.dtype)
        if draft.tree.nodes > 1:
            # beta is 1 where a value was drawn after the accepted prefix
            line = torch.nn.functional.normalize(mean - at_node(draft.law.mean, law_row(draft)[node]), dim=-1)
            uniform = keys.uniform(Purpose.RESIDUAL, 1)[:, 0]
            along = excess_draw(at_node(weights.alpha, node), at_node(weights.extra, node), uniform).to(mean.dtype)
            beside = noise + (along - (noise * line).sum(-1))[:, None] * line
            noise = torch.where(at_node(weights.beta, node)[:, None] > 0, beside, noise)
        verdict.correction = mean + scale * noise
        return verdict
