"""Schedules of the stack: how long the head walks, and in which order a checkerboard is filled."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.keys import Keys
from mmspec.imagegen.continuous.schedules.generation_order import checkerboard_orders, checkerboard_steps, cosine_steps
from mmspec.imagegen.continuous.schedules.step_annealing import Annealing


def test_linear_annealing_is_the_published_index() -> None:
    """floor((N - 1 - s) / (N - 1) (K - 1)) into the step counts 5..50."""
    counts = list(range(5, 51))
    for total in (2, 9, 64, 256):
        found = [Annealing(50, 5).at(step, total) for step in range(total)]
        assert found == [counts[(total - 1 - step) * (len(counts) - 1) // (total - 1)] for step in range(total)]


@pytest.mark.parametrize("shape", ("linear", "cosine", "two-stage", "constant"))
def test_every_shape_starts_long_and_never_grows(shape: str) -> None:
    found = [Annealing(50, 5, shape).at(step, 64) for step in range(64)]
    assert found[0] == 50 and found == sorted(found, reverse=True)
    assert found[-1] == (50 if shape == "constant" else 5)


def test_two_stages_switch_where_they_should() -> None:
    found = [Annealing(50, 10, "two-stage", switch=0.25).at(step, 8) for step in range(8)]
    assert found == [50] * 2 + [10] * 6


def test_equal_ends_are_the_plain_head_throughout() -> None:
    assert {Annealing(20, 20).at(step, 9) for step in range(9)} == {20}


def test_the_count_of_a_rank_is_that_of_the_step_that_decides_it() -> None:
    steps = cosine_steps(64, 12)
    counts = Annealing(50, 5).by_rank(steps, 64)
    for number, step in enumerate(steps):
        assert set(counts[step.first : step.last].tolist()) == {Annealing(50, 5).at(number, len(steps))}


def test_a_window_walks_as_far_as_its_first_step() -> None:
    steps, annealing = cosine_steps(64, 12), Annealing(50, 5)
    windows = [0, 1, 1, 1, 4, 4, 4, 7, 7, 7, 10, 10]
    counts = annealing.by_rank(steps, 64, windows)
    for step, start in zip(steps, windows, strict=True):
        assert set(counts[step.first : step.last].tolist()) == {annealing.at(start, len(steps))}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(first=5, last=6), "last: expected 2 to 5 denoising steps, got 6"),
        (dict(last=1), "last: expected"),
        (dict(shape="sine"), "shape: expected 'linear', 'cosine', 'constant' or 'two-stage', got 'sine'"),
        (dict(switch=2), "switch: expected at least 0 and at most 1"),
    ],
)
def test_wrong_annealing_is_refused(settings: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Annealing(**settings)


@pytest.mark.parametrize("grid", (2, 5, 8))
def test_checkerboards_end_with_the_skeleton(grid: int) -> None:
    order = checkerboard_orders(Keys.of(1, 30), grid)
    total = grid * grid
    assert torch.equal(order.sort(1).values, torch.arange(total).expand(30, -1))
    colour = (order // grid + order % grid) % 2
    assert (colour[:, : total // 2] == 1).all() and (colour[:, total // 2 :] == 0).all()
    assert len({tuple(row) for row in order.tolist()}) > 1  # each half in a random order


@pytest.mark.parametrize(("grid", "num_iter", "reconstruct"), [(8, 16, 1), (8, 16, 3), (5, 4, 1), (16, 64, 2)])
def test_the_plan_decides_every_token_once_the_skeleton_first(grid: int, num_iter: int, reconstruct: int) -> None:
    steps, total = checkerboard_steps(grid, num_iter, reconstruct), grid * grid
    assert steps[0].last == total and steps[-1].first == 0
    assert all(
        step.first == other.last and step.first < step.last for step, other in zip(steps, steps[1:], strict=False)
    )
    assert all(step.masked == max(step.first, 1) for step in steps[-reconstruct:])
    assert sum(step.first >= total // 2 for step in steps) == len(steps) - reconstruct
    assert all(step.masked >= total // 2 for step in steps[:-reconstruct])
    assert len(steps) - reconstruct == (num_iter + 1) // 2  # the skeleton keeps plain decoding's pace


def test_a_checkerboard_needs_both_parts() -> None:
    with pytest.raises(ValueError, match="reconstruct: expected 1 to 8 steps, at most the number of cells, got 9"):
        checkerboard_steps(4, 4, 9)
    with pytest.raises(ValueError, match="grid: expected at least 2"):
        checkerboard_orders(Keys.of(0, 1), 1)
