"""Raster order over time: an image is one frame, a frame is an image."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi.initialisation import JacobiWindow, sources_of
from mmspec.imagegen.rowwise.row_schedule import row_spans

CPU = torch.device("cpu")


def test_frames_follow_each_other_in_raster_order() -> None:
    geometry = Geometry(((2, 2),), row_end=9, tail=(8,), frames=2)
    rows = [(0, frame, row, column) for frame in range(2) for row in range(2) for column in range(3)]
    assert geometry.cells == (*rows, (0, -1, -1, -1)) and geometry.total == 13
    assert geometry.forced.tolist() == [-1, -1, 9] * 4 + [8]
    assert geometry.code_index.tolist() == [0, 1, 3, 4, 6, 7, 9, 10]


def test_every_grid_has_all_its_frames_before_the_next_begins() -> None:
    geometry = Geometry(((1, 1), (1, 2)), frames=2)
    assert [grid for grid, *_ in geometry.cells] == [0, 0, 1, 1, 1, 1]
    assert geometry.code_index.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("one", (Geometry.square(3), Geometry(((2, 3),), row_end=7, tail=(8, 9))))
def test_every_frame_has_the_cells_and_lines_of_the_image(one: Geometry) -> None:
    three = Geometry(one.grids, one.row_end, frames=3)
    size = one.rows * one.stride
    assert three.total == 3 * size
    for index, (_, frame, *cell) in enumerate(three.cells):
        assert frame == index // size and tuple(cell) == one.cells[index % size][2:]
    lines, more = row_spans(one), row_spans(three)
    assert [(x.start % size, x.codes, x.first) for x in more] == [(x.start, x.codes, x.first) for x in lines] * 3


def test_a_cold_code_finds_its_place_in_the_newest_known_frame() -> None:
    geometry = Geometry(((2, 2),), frames=4)
    sources = sources_of(geometry, CPU)
    window = JacobiWindow.of(
        torch.tensor([4, 1]), torch.tensor([1, 1]), 8, geometry.total
    )  # places to 5 and to 2 are known
    first, second = sources.near("repeat_frame", window).tolist()
    assert first == [5, 2, 3, 4, 5, 2, 3, 4]  # a frame back, or two
    assert second == [2, 3, 0, 1, 2, 3, 0, 1]  # place 3 of the first frame has none before it but itself
    assert sources.reach("frame") == 4 and sources.reach("up") == 2 and sources.reach("left") == 0


def test_an_image_has_no_frame_before() -> None:
    sources = sources_of(Geometry.square(3), CPU)
    window = JacobiWindow.of(torch.tensor([0]), torch.tensor([1]), 6, 9)
    assert sources.near("repeat_frame", window).tolist() == [[1, 2, 3, 4, 5, 6]]
    assert torch.equal(sources.of_law("frame", window), sources.of_law("left", window))


def test_no_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="frames: expected at least 1, got 0"):
        Geometry(((2, 2),), frames=0)
