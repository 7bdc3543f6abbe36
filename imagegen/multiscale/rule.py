"""Judging upsampled candidates: pooled probability against a threshold, and a neighbourhood around every failure."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft, expand_tree
from mmspec.core.evidence import Evidence
from mmspec.core.rules.base import Weights
from mmspec.core.sample import law_of
from mmspec.core.verdict import Verdict
from mmspec.imagegen.canvas_rule import CanvasRule, is_root
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.multiscale.islands import expand
from mmspec.imagegen.rules.neighbours import neighbours


class LocalThreshold(CanvasRule):
    """Keeps a drafted code when the target gives at least `threshold` to it and its nearest codes together; around one that
    fails, everything within `radius` cells falls too, but nothing before the first failure in raster order. Relaxed.

    "Multi-Scale Local Speculative Decoding for Image Generation" (MuLo-SD; no public code, and its thresholds and pool sizes
    are not given). There is no q and no chance in it: laws decide in the pass, draws only refill. A threshold above 1
    drops every draft and refills with the target's law in raster order: plain decoding.

    near: int64 [K, k], per code the codes pooled, itself among them, see `pools`.   radius: None for everything behind the
    first failure.   Forced values always stand. Behind the first failure stands a draw from the target's law.
    """

    name = "local threshold (relaxed)"
    proven_for = frozenset({("none", "none")})

    def __init__(self, threshold: float, near: Tensor, radius: int | None, geometry: Geometry):
        self.threshold, self.near, self.radius, self.geometry = threshold, near, radius, geometry

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        drafted = ~is_root(draft.tree)
        if draft.tree.max_depth == 0:
            return Weights(torch.ones(draft.value.shape, device=draft.value.device), "mask")
        p, near = law_of(evidence.scores), self.near.to(draft.value.device)
        pool = near[draft.value.clamp(max=len(near) - 1)]  # [B, N, k]
        row = expand_tree(draft.tree.parent, draft.batch)[..., None] * p.shape[-1]
        pooled = p.flatten(1).gather(1, (row + pool).flatten(1)).view_as(pool).sum(-1)
        stands = (pooled >= self.threshold) | (draft.value >= len(near))
        return Weights((stands | ~drafted).float(), "mask", extra=drafted)

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        verdict = super().select(weights, uniform, draft)
        if weights.extra is not None:
            failed = weights.extra & ~verdict.keep
            verdict.keep &= ~self._around(failed if draft.valid is None else failed & draft.valid, draft)
            verdict.depth = (verdict.keep & weights.extra).sum(-1)
        return verdict

    def _around(self, failed: Tensor, draft: Draft) -> Tensor:
        """bool [B, N], nodes that fall with the failed ones."""
        geometry, device = self.geometry, failed.device
        cells = geometry.code_index.to(device)
        canvas = torch.zeros(len(failed), geometry.total + 1, dtype=torch.bool, device=device)
        canvas.scatter_(1, torch.where(failed, draft.index, geometry.total), True)
        reached = expand(canvas[:, cells].view(-1, geometry.rows, geometry.cols), self.radius).flatten(1)
        canvas.zero_()[:, cells] = reached
        return canvas.gather(1, draft.index.clamp(0, geometry.total))


def pools(codebook: Tensor, k: int) -> Tensor:
    """int64 [K, k], every code and its k - 1 nearest other ones. codebook: float [K, d], as `ImageModel.codebook` gives it.

    Raises ValueError for k outside 1..K.
    """
    if not 1 <= k <= len(codebook):
        raise ValueError(f"k: expected 1 to {len(codebook)} codes, the draft among them, got {k}")
    itself = torch.arange(len(codebook), device=codebook.device)[:, None]
    return itself if k == 1 else torch.cat((itself, neighbours(codebook, k - 1, normalise=False)), 1)
