"""CSpD's rules: the ratio of two aligned trajectories, and the target's own draws within a tolerance of the drafts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules.base import Rule, Weights
from mmspec.imagegen.continuous.cspd.acceptance import RESIDUAL_TRIES, Relaxation, log_ratio, residual_sample
from mmspec.imagegen.continuous.cspd.window import WindowDraft, reshape_rows, settled_nodes
from mmspec.imagegen.continuous.masked_decoding import OwnDraw
from mmspec.imagegen.continuous.masked_target import TokenEvidence

_OWN_DRAW = OwnDraw()


class TrajectoryRatio(Rule):
    """Accepts a drafted token with probability min(1, ratio), see `log_ratio`. Relaxed. "Continuous Speculative
    Decoding for Autoregressive Image Generation". The ratio replaces that of the tokens' densities, which is
    intractable. A rejected token becomes the first accepted of `tries` proposals, see `residual_sample`. With
    `truncate` nothing behind the step of the first rejection is settled; otherwise each token counts alone, as in the
    public code. Without drafts the target's own draw is emitted. `OwnWithin(0)` is exact; for the ratio see
    `Relaxation`."""

    name = "cspd (relaxed)"
    exact = False
    proven_for = frozenset({("gaussian", "without_replacement"), ("none", "none")})
    reads = "mean"

    def __init__(self, relaxation: Relaxation, *, truncate: bool = False, tries: int = RESIDUAL_TRIES):
        if tries < 1:
            raise ValueError(
                f"tries: expected at least 1 proposal, got {tries}; the public code makes {RESIDUAL_TRIES}"
            )
        self.relaxation, self.truncate, self.tries = relaxation, truncate, tries

    def rule_for(self, draft: Draft, evidence: Evidence) -> Rule:
        return self if isinstance(draft, WindowDraft) else _OWN_DRAW

    def weigh(self, evidence: TokenEvidence, draft: WindowDraft) -> Weights:
        target = reshape_rows(evidence.trajectory, draft.step.shape)
        ratio = log_ratio(draft.value, draft.trajectory, target, self.relaxation, draft.temperature)
        threshold = ratio.clamp_max(0).exp().nan_to_num(0.0)
        return Weights(torch.where((draft.step >= 0) & ~evidence.bad, threshold, 0.0), "mask")

    def resample(
        self, evidence: TokenEvidence, draft: WindowDraft, weights: Weights, verdict: Verdict, keys: Keys
    ) -> Verdict:
        target = reshape_rows(evidence.trajectory, draft.step.shape)
        nodes, dim = draft.value.shape[1:]
        noise = keys.normal(Purpose.RESIDUAL, nodes, self.tries, dim).permute(2, 0, 1, 3)
        uniform = keys.uniform(Purpose.RESIDUAL, nodes, self.tries, step=1).permute(2, 0, 1)
        value, _ = residual_sample(draft.trajectory, target, noise, uniform, self.relaxation, draft.temperature)
        settled = settled_nodes(draft, verdict.keep, self.truncate)
        value = torch.where(evidence.bad[..., None], evidence.own, value)
        verdict.correction = open_correction(value, settled & ~verdict.keep)
        verdict.keep = verdict.keep & settled
        return verdict


def open_correction(value: Tensor, put: Tensor) -> Tensor:
    """Return a correction float [B, N, d]: `value` at the nodes `put` bool [B, N], and NaN, for none, elsewhere."""
    return value.masked_fill(~put[..., None], torch.nan)


class OwnWithin(Rule):
    """Emits the target's own draws up to the first step with a draft farther than eps (Euclidean). Relaxed for eps
    above 0. The target shares its noise with the drafter and draws every token given the drafts before it, within eps
    of the output. With 0 the output is plain decoding's, unless a schedule relaxes the draws (`plain` False)."""

    proven_for = frozenset({("gaussian", "without_replacement"), ("none", "none")})
    reads = "mean"

    def __init__(self, eps: float, plain: bool = True):
        if not 0 <= eps < math.inf:
            raise ValueError(f"tolerance: expected a distance of 0 or more, got {eps}; 0 gives the target's own output")
        self.eps, self.exact = eps, eps == 0 and plain
        self.name = "own draw" if self.exact else "own within tolerance (relaxed)"

    def rule_for(self, draft: Draft, evidence: Evidence) -> Rule:
        return self if isinstance(draft, WindowDraft) else _OWN_DRAW

    def weigh(self, evidence: TokenEvidence, draft: WindowDraft) -> Weights:
        near = (draft.value - evidence.own).norm(dim=-1) <= self.eps
        return Weights((near & (draft.step >= 0) & ~evidence.bad).double(), "mask")

    def resample(
        self, evidence: TokenEvidence, draft: WindowDraft, weights: Weights, verdict: Verdict, keys: Keys
    ) -> Verdict:
        put = settled_nodes(draft, verdict.keep, truncate=True)
        verdict.keep = verdict.keep & put
        verdict.correction = open_correction(evidence.own, put)
        return verdict
