"""The kernel distance is the published sum over pairs, unbiased at every N; without torchmetrics a sentence says so."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from mmspec.evaluate.quality.frechet import frechet, frechet_interval
from mmspec.evaluate.quality.generative_metrics import inception_score, kernel_distance


def drawn(seed: int, count: int, mean: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1, (count, 4))


def test_it_is_the_sum_over_pairs() -> None:
    a, b = drawn(0, 7), drawn(1, 7)

    def kernel(x: np.ndarray, y: np.ndarray) -> float:
        return (float(x @ y) / 4 + 1) ** 3

    within = [
        np.mean([kernel(x, y) for i, x in enumerate(rows) for j, y in enumerate(rows) if i != j]) for rows in (a, b)
    ]
    across = np.mean([kernel(x, y) for x in a for y in b])
    assert kernel_distance(a, b)[0] == pytest.approx(sum(within) - 2 * across, rel=1e-9)


def test_the_mean_distance_between_sets_of_the_same_distribution_is_zero() -> None:
    found = [kernel_distance(drawn(2 * i, 20), drawn(2 * i + 1, 20))[0] for i in range(400)]
    assert abs(np.mean(found)) < 3 * np.std(found) / 20
    assert min(found) < 0 < max(found)


def test_sets_of_different_sizes_are_compared_in_blocks_without_the_global_generator() -> None:
    a, b = drawn(0, 60, 0.5), drawn(1, 40)
    torch.manual_seed(3)
    (mean, deviation), after = kernel_distance(a, b), torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1)) and kernel_distance(a, b) == (mean, deviation) and deviation > 0
    assert abs(mean - kernel_distance(a[:40], b)[0]) < 6 * deviation


def test_the_interval_of_a_frechet_distance_is_wider_for_fewer_rows() -> None:
    a, b = drawn(0, 200), drawn(1, 200, 0.3)
    few, many = frechet_interval(a[:40], b[:40], 50), frechet_interval(a, b, 50)
    assert many[0] < frechet(a, b) < many[1] and few[1] - few[0] > many[1] - many[0]


@pytest.mark.parametrize("wrong", [np.zeros((1, 4)), np.zeros(4), np.full((3, 4), np.inf), np.zeros((3, 5))], ids=str)
def test_sets_that_cannot_be_compared_are_refused(wrong: np.ndarray) -> None:
    for measure in (kernel_distance, frechet):
        with pytest.raises(ValueError, match="features: expected .*, got .*; "):
            measure(wrong, drawn(0, 4))


def test_without_torchmetrics_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    for measure in (lambda: frechet(drawn(0, 4), drawn(1, 4)), lambda: inception_score(np.full((4, 2), 0.5))):
        with pytest.raises(ValueError, match=r"expected torchmetrics, got none; pip install \"mmspec\[eval\]\""):
            measure()
