"""The rule of MuLo: pooled probability against a threshold, the region around every failure, and its islands."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from mmspec.core.round.draft import Draft, Evidence, Verdict, expand_tree
from mmspec.core.round.rules.base import Weights
from mmspec.core.round.sampling import law_of
from mmspec.imagegen.any_order import AnyOrderRule, is_root
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.rules.lantern import nearest_codes


def fallen_region(rejected: Tensor, radius: int | None) -> Tensor:
    """Return bool [B, R, C], cells within `radius` of a rejected cell (None: all behind), none before the first."""
    flat = rejected.flatten(1)
    behind = flat.cumsum(1) > 0
    if radius is None:
        return behind.view_as(rejected)
    near = max_pool2d(rejected[:, None].float(), 2 * radius + 1, 1, radius)[:, 0] > 0
    return near & behind.view_as(near)


def label_islands(mask: Tensor) -> Tensor:
    """Return int64 [B, R, C], the smallest raster number in each cell's 8-connected island, -1 outside the mask bool
    [B, R, C]. Numbers spread over 3 x 3 squares until nothing changes, with a transfer to the host per step."""
    batch, rows, cols = mask.shape
    count = rows * cols
    # numbers are negated, so that max pooling spreads the smallest; float64 represents every cell number exactly
    start = torch.arange(count, 0, -1, device=mask.device, dtype=torch.float64).view(1, rows, cols)
    seen = torch.where(mask, start, 0.0)
    while True:
        spread = torch.where(mask, max_pool2d(seen[:, None], 3, 1, 1)[:, 0], 0.0)
        if torch.equal(spread, seen):
            return torch.where(mask, count - seen.long(), -1)
        seen = spread


def island_order(mask: Tensor) -> Tensor:
    """Return int64 [B, K, M], the islands' cells of bool [B, R, C] in raster order, by first cell, -1 for none."""
    island = label_islands(mask).flatten(1)
    batch, count = island.shape
    number = torch.arange(count, device=mask.device)
    inside = island >= 0
    rank = (island == number).long().cumsum(1).gather(1, island.clamp_min(0)) - 1
    rank = torch.where(inside, rank, count)
    size = torch.zeros(batch, count + 1, dtype=torch.long, device=mask.device).scatter_add_(1, rank, inside.long())
    cell = rank.argsort(stable=True, dim=1)  # island by island, in raster order
    rank = rank.gather(1, cell)
    step = number - (size.cumsum(1) - size).gather(1, rank)
    islands, longest = torch.stack(((size > 0).sum(1).amax(), size.amax())).tolist()
    order = torch.full((batch, islands + 1, longest + 1), -1, device=mask.device)
    row = torch.arange(batch, device=mask.device)[:, None]
    there = rank < count
    order[row, torch.where(there, rank, islands), torch.where(there, step, longest)] = torch.where(there, cell, -1)
    return order[:, :islands, :longest]


class LocalThreshold(AnyOrderRule):
    """Accepts a drafted code when the target gives at least `threshold` to it and its nearest codes together. Relaxed.
    "Multi-Scale Local Speculative Decoding for Image Generation" (MuLo-SD; no public code, thresholds and pool sizes
    are not published). Cells within `radius` of a rejection (None: all behind it) are rejected too, but none before the
    first. There is no q and no random test: draws from the target only refill. A threshold above 1 is plain decoding.
    Forced values are always accepted. `near` int64 [K, k] is as `code_pools` returns it."""

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
        accepted = (pooled >= self.threshold) | (draft.value >= len(near))
        return Weights((accepted | ~drafted).float(), "mask", extra=drafted)

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        verdict = super().select(weights, uniform, draft)
        if weights.extra is not None:
            failed = weights.extra & ~verdict.keep
            verdict.keep &= ~self._around(failed if draft.valid is None else failed & draft.valid, draft)
            verdict.depth = (verdict.keep & weights.extra).sum(-1)
        return verdict

    def _around(self, failed: Tensor, draft: Draft) -> Tensor:
        """Return bool [B, N], the nodes that are rejected with the failed nodes."""
        geometry, device = self.geometry, failed.device
        cells = geometry.code_index.to(device)
        canvas = torch.zeros(len(failed), geometry.total + 1, dtype=torch.bool, device=device)
        canvas.scatter_(1, torch.where(failed, draft.index, geometry.total), True)
        reached = fallen_region(canvas[:, cells].view(-1, geometry.rows, geometry.cols), self.radius).flatten(1)
        canvas.zero_()[:, cells] = reached
        return canvas.gather(1, draft.index.clamp(0, geometry.total))


def code_pools(codebook: Tensor, k: int) -> Tensor:
    """Return int64 [K, k], every code of a codebook float [K, d] and its k - 1 nearest other codes."""
    if not 1 <= k <= len(codebook):
        raise ValueError(f"k: expected 1 to {len(codebook)} codes, the draft among them, got {k}")
    itself = torch.arange(len(codebook), device=codebook.device)[:, None]
    return itself if k == 1 else torch.cat((itself, nearest_codes(codebook, k - 1, normalise=False)), 1)
