"""Regions of uniforms: their volumes are known to rounding, and what does not come in boxes is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.certify.regions import RegionMap, Regions, UnresolvedRegions


def regions(ask, rows: int, axes: int) -> Regions:
    found = RegionMap(ask, rows, axes)
    found.search([*range(rows)])
    return found.regions()


def volumes(ask, axes: int, rows: int = 1) -> dict[int, float]:
    found = regions(ask, rows, axes)
    assert float(found.volume.sum()) == pytest.approx(rows, abs=1e-12)
    codes = found.code.unique().tolist()
    return {code: float(found.volume[found.code == code].sum()) for code in codes}


def test_boxes_of_several_uniforms_are_found() -> None:
    def ask(row: Tensor, point: Tensor) -> Tensor:
        # an accept test, and what follows it by inversion of another law on either side of it
        passed = point[:, 0] < 1 / 3
        return torch.where(passed, (point[:, 1] >= 0.123456789).long(), 2 + (point[:, 1] >= 0.7).long())

    found = volumes(ask, 2)
    assert found[0] == pytest.approx(0.123456789 / 3, abs=1e-13) and found[2] == pytest.approx(0.7 * 2 / 3, abs=1e-13)


@pytest.mark.parametrize("width", (1e-3, 1e-6, 1e-8))
def test_a_narrow_box_beside_an_edge_is_found(width: float) -> None:
    edges = torch.tensor([width, 0.5, 0.5 + width, 1 - width], dtype=torch.float64)
    found = volumes(lambda row, point: torch.bucketize(point[:, 1].contiguous(), edges, right=True), 2)
    assert found[0] == pytest.approx(width, rel=1e-6) and found[2] == pytest.approx(width, rel=1e-6)
    assert found[4] == pytest.approx(width, rel=1e-6)


def test_every_row_has_boxes_of_its_own() -> None:
    at = torch.tensor([0.2, 0.9])
    found = regions(lambda row, point: (point[:, 0] < at[row]).long(), 2, 1)
    for row, share in enumerate(at.tolist()):
        assert float(found.volume[(found.row == row) & (found.code == 1)].sum()) == pytest.approx(share, abs=1e-7)


def test_uniforms_that_are_mixed_are_refused() -> None:
    with pytest.raises(UnresolvedRegions, match="mixed with another"):
        regions(lambda row, point: (point.sum(-1) < 1).long(), 1, 2)


def test_answers_that_change_by_themselves_are_refused() -> None:
    dice = torch.Generator().manual_seed(0)
    with pytest.raises(UnresolvedRegions):
        regions(lambda row, point: torch.randint(3, (len(row),), generator=dice), 1, 2)


def test_a_point_is_located_in_its_box() -> None:
    at = torch.tensor([0.25, 0.5, 0.5])

    def ask(row: Tensor, point: Tensor) -> Tensor:
        return 10 * row + 2 * (point[:, 0] >= at[row]).long() + (point[:, 1] >= 0.75).long() * (row < 2)

    found = RegionMap(ask, 3, 2)
    found.search([0, 1, 2])
    rows = torch.tensor([2, 0])
    points = torch.tensor([[[0.4, 0.9], [0.6, 0.9]], [[0.1, 0.7], [0.26, 0.9]]], dtype=torch.float64)
    place = found.locate(rows, points)
    assert place.code.tolist() == [[20, 22], [0, 3]] and place.box.tolist() == [[0, 1], [0, 3]]
    assert place.margin.flatten().tolist() == pytest.approx([0.1, 0.1, 0.05, 0.01], abs=1e-9)
