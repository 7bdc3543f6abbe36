"""Regions and islands against plain loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.imagegen.multiscale.local_threshold import fallen_region, island_order, label_islands

SHAPES = ((1, 1), (5, 6), (9, 4), (1, 8))


def masks(shape: tuple[int, int]) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.cat([torch.rand(6, *shape, generator=generator) < share for share in (0.0, 0.15, 0.45, 0.8, 1.0)])


def flood(mask: Tensor) -> list[list[int]]:
    """Islands of one mask [R, C], cells in raster order, islands by their first cells."""
    rows, cols = mask.shape
    left, islands = set(mask.flatten().nonzero()[:, 0].tolist()), []
    while left:
        island, edge = set(), [min(left)]
        while edge:
            cell = edge.pop()
            if cell in left:
                left.discard(cell)
                island.add(cell)
                r, c = divmod(cell, cols)
                near = [(r + i, c + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
                edge += [a * cols + b for a, b in near if 0 <= a < rows and 0 <= b < cols]
        islands.append(sorted(island))
    return islands


@pytest.mark.parametrize("shape", SHAPES)
def test_islands_are_eight_connected_and_in_raster_order(shape: tuple[int, int]) -> None:
    mask = masks(shape)
    labels, order = label_islands(mask), island_order(mask)
    for row, one in enumerate(mask):
        found = [[cell for cell in island if cell >= 0] for island in order[row].tolist()]
        expected = flood(one)
        assert [island for island in found if island] == expected
        flat = labels[row].flatten()
        assert all(bool((flat[island] == island[0]).all()) for island in expected)
        assert int((flat >= 0).sum()) == sum(map(len, expected))


def test_a_winding_island_is_a_single_island() -> None:
    mask = torch.ones(1, 7, 9, dtype=torch.bool)
    mask[0, 1::4, :-1] = mask[0, 3::4, 1:] = False
    assert island_order(mask).shape[1] == 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("radius", (0, 1, 3, None))
def test_nothing_before_the_first_rejection_is_discarded(shape: tuple[int, int], radius: int | None) -> None:
    for mask, fallen in zip(masks(shape), fallen_region(masks(shape), radius), strict=True):
        cells = mask.nonzero().tolist()
        for r in range(shape[0]):
            for c in range(shape[1]):
                behind = bool(cells) and [r, c] >= cells[0]
                near = radius is None or any(max(abs(r - a), abs(c - b)) <= radius for a, b in cells)
                assert bool(fallen[r, c]) == (behind and near)
