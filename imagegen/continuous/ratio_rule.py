"""CSpD's verdict on a window: each token by the ratio of two aligned walks, the rejected ones from the residual."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.verdict import Verdict
from mmspec.imagegen.continuous.acceptance import Relaxation, log_ratio
from mmspec.imagegen.continuous.evidence import TokenEvidence
from mmspec.imagegen.continuous.residual import TRIES, residual_sample
from mmspec.imagegen.continuous.steps import OwnDraw
from mmspec.imagegen.continuous.window import WindowDraft, rows_of, settles

_OWN = OwnDraw()


class TrajectoryRatio(Rule):
    """Keeps a drafted token with probability min(1, ratio), see `log_ratio`. Relaxed: the ratio is a surrogate for that of
    the tokens' densities, which is intractable, and a relaxation temperature divides its distances.

    "Continuous Speculative Decoding for Autoregressive Image Generation". A rejected token is the first accepted of `tries`
    proposals from the target's last step, or the target's own aligned sample (`residual_sample`). What the verdict settles
    besides depends on the window: with truncate nothing behind the step of the first rejection, without it every
    token stands or falls alone, as in the public code. Where nothing was drafted the target's own draw is taken.
    relaxation: see `Relaxation`.   Raises ValueError for fewer than 1 try, and at sampler temperature 0.
    The setting that gives up nothing is `OwnWithin(0)`; `Relaxation` says what of the ratio itself is exact.
    """

    name = "cspd (relaxed)"
    exact = False
    proven_for = frozenset({("gaussian", "without_replacement"), ("none", "none")})
    reads = "mean"

    def __init__(self, relaxation: Relaxation, *, truncate: bool = False, tries: int = TRIES):
        if tries < 1:
            raise ValueError(f"tries: expected at least 1 proposal, got {tries}; the public code makes {TRIES}")
        self.relaxation, self.truncate, self.tries = relaxation, truncate, tries

    def on(self, draft: Draft, evidence: Evidence) -> Rule:
        return self if isinstance(draft, WindowDraft) else _OWN

    def weigh(self, evidence: TokenEvidence, draft: WindowDraft) -> Weights:
        target = rows_of(evidence.trajectory, draft.step.shape)
        ratio = log_ratio(draft.value, draft.trajectory, target, self.relaxation, draft.temperature)
        threshold = ratio.clamp_max(0).exp().nan_to_num(0.0)
        return Weights(torch.where((draft.step >= 0) & ~evidence.bad, threshold, 0.0), "mask")

    def resample(
        self, evidence: TokenEvidence, draft: WindowDraft, weights: Weights, verdict: Verdict, keys: Keys
    ) -> Verdict:
        target = rows_of(evidence.trajectory, draft.step.shape)
        nodes, dim = draft.value.shape[1:]
        noise = keys.normal(Purpose.RESIDUAL, nodes, self.tries, dim).permute(2, 0, 1, 3)
        uniform = keys.uniform(Purpose.RESIDUAL, nodes, self.tries, step=1).permute(2, 0, 1)
        value, _ = residual_sample(draft.trajectory, target, noise, uniform, self.relaxation, draft.temperature)
        settled = settles(draft, verdict.keep, self.truncate)
        value = torch.where(evidence.bad[..., None], evidence.own, value)
        verdict.correction = nowhere_else(value, settled & ~verdict.keep)
        verdict.keep = verdict.keep & settled
        return verdict


def nowhere_else(value: Tensor, put: Tensor) -> Tensor:
    """A correction float [B, N, d] that holds `value` at the nodes `put` bool [B, N] and NaN, which is nothing, elsewhere."""
    return value.masked_fill(~put[..., None], torch.nan)
