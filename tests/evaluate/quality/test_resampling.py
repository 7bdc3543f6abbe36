"""Intervals by resampling: they narrow with more prompts, and seeds of one prompt are not more prompts."""

from __future__ import annotations

import numpy as np

from mmspec.evaluate.engine.statistics import interval


def width(groups: list) -> float:
    low, high = interval(groups, lambda found: float(found.mean()))
    return high - low


def test_resampling_draws_whole_groups() -> None:
    values = np.random.default_rng(0).normal(size=64)
    few, many = [[value] for value in values[:16]], [[value] for value in values]
    assert width(many) < 0.7 * width(few)
    assert width([prompt * 8 for prompt in few]) == width(few)  # eight equal draws of a prompt tell nothing more
    assert 0.6 < width(few) / (2 * 1.645 * values[:16].std() / 4) < 1.4


def test_the_interval_holds_the_figure_and_repeats() -> None:
    groups = [[1.0, 2.0], [3.0], [10.0, 11.0]]
    low, high = interval(groups, lambda found: float(np.median(found)))
    assert 1 <= low < 3 <= high <= 11 and interval(groups, lambda found: float(np.median(found))) == [low, high]
    assert interval([[1.0]], lambda found: 0.0) is None and interval([], lambda found: 0.0) is None


def test_rows_of_numbers_stay_together() -> None:
    pairs = [np.array([[value, 2 * value]]) for value in (1.0, 2.0, 5.0)]
    assert interval(pairs, lambda rows: rows[:, 1].mean() / rows[:, 0].mean()) == [2, 2]


def test_resamples_without_a_figure_are_left_out() -> None:
    groups = [[0.0], [1.0], [2.0]]
    low, high = interval(groups, lambda found: 1 / found.mean() if found.mean() else float("nan"))
    assert 0.5 <= low < high <= 3
    assert interval(groups, lambda found: float("nan")) is None
