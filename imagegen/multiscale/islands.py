"""Regions of a grid: how far a rejection reaches, and which of its cells can be drawn again side by side."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d


def expand(rejected: Tensor, radius: int | None) -> Tensor:
    """bool [B, R, C], everything within a square of `radius` cells around a rejected cell, but nothing before the first of
    them in raster order. radius None reaches everything behind it. rejected: bool [B, R, C].
    """
    flat = rejected.flatten(1)
    behind = flat.cumsum(1) > 0
    if radius is None:
        return behind.view_as(rejected)
    near = max_pool2d(rejected[:, None].float(), 2 * radius + 1, 1, radius)[:, 0] > 0
    return near & behind.view_as(near)


def label(mask: Tensor) -> Tensor:
    """int64 [B, R, C], for every cell of the mask the smallest raster number in its 8-connected island; -1 elsewhere.

    mask: bool [B, R, C]. Numbers spread over 3 x 3 squares until nothing changes: as many steps as the longest way in an
    island has cells, and one transfer to the host each.
    """
    batch, rows, cols = mask.shape
    count = rows * cols
    # the largest of the negated numbers wins; float64 holds every number of a grid
    start = torch.arange(count, 0, -1, device=mask.device, dtype=torch.float64).view(1, rows, cols)
    seen = torch.where(mask, start, 0.0)
    while True:
        spread = torch.where(mask, max_pool2d(seen[:, None], 3, 1, 1)[:, 0], 0.0)
        if torch.equal(spread, seen):
            return torch.where(mask, count - seen.long(), -1)
        seen = spread


def island_order(mask: Tensor) -> Tensor:
    """int64 [B, K, M], the cells of each island in raster order, islands in the order of their first cells; -1 where an image
    has fewer islands or an island fewer cells. mask: bool [B, R, C].
    """
    island = label(mask).flatten(1)
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
