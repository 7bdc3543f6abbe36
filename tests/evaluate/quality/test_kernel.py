"""The kernel distance is unbiased at every N, and its interval covers what it should."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.evaluate.quality.generative_metrics import _unbiased, _weights, kernel_distance


def drawn(seed: int, count: int, mean: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1, (count, 4))


def test_it_is_the_sum_over_pairs() -> None:
    a, b = drawn(0, 5), drawn(1, 7)

    def kernel(x: np.ndarray, y: np.ndarray) -> float:
        return (float(x @ y) / 4 + 1) ** 3

    within = [
        np.mean([kernel(x, y) for i, x in enumerate(rows_) for j, y in enumerate(rows_) if i != j]) for rows_ in (a, b)
    ]
    across = np.mean([kernel(x, y) for x in a for y in b])
    assert kernel_distance(a, b, resamples=0).value == pytest.approx(sum(within) - 2 * across, rel=1e-12)


@pytest.mark.parametrize("count", [5, 20])
def test_the_mean_distance_between_sets_of_the_same_distribution_is_zero(count: int) -> None:
    found = [kernel_distance(drawn(2 * i, count), drawn(2 * i + 1, count), resamples=0).value for i in range(400)]
    assert abs(np.mean(found)) < 3 * np.std(found) / 20
    assert min(found) < 0 < max(found)


def test_resampled_rows_are_never_compared_with_themselves() -> None:
    # a bootstrap that took repeats for pairs would be far above the distance itself
    a, b = drawn(0, 30), drawn(1, 30)
    kernels = tuple((x @ y.T / 4 + 1.0) ** 3 for x, y in ((a, a), (b, b), (a, b)))
    random = np.random.default_rng(0)
    found = [_unbiased(kernels, _weights(random, 30), _weights(random, 30)) for _ in range(500)]
    naive = []
    for _ in range(500):
        x, y = (rows_[random.integers(30, size=30)] for rows_ in (a, b))
        naive.append(kernel_distance(x, y, resamples=0).value)
    value = kernel_distance(a, b, resamples=0).value
    assert abs(np.mean(found) - value) < 3 * np.std(found) / np.sqrt(500)
    assert np.mean(naive) - value > 10 * np.std(naive) / np.sqrt(500)


def test_the_interval_covers_the_true_distance_about_as_often_as_it_says() -> None:
    a, b = drawn(10_000, 20_000), drawn(20_001, 20_000, 0.7)
    truth = kernel_distance(a[:3000], b[:3000], block=3000, resamples=0).value
    inside = 0
    for i in range(50):
        low, high = kernel_distance(a[i * 60 : i * 60 + 60], b[i * 60 : i * 60 + 60], resamples=60, seed=i).interval
        inside += low <= truth <= high
    assert 37 <= inside <= 50


def test_blocks_of_large_sets_match_a_single_matrix() -> None:
    a, b = drawn(0, 400), drawn(1, 400, 0.5)
    whole, cut = kernel_distance(a, b, resamples=50), kernel_distance(a, b, block=100, resamples=50)
    assert cut.value == pytest.approx(whole.value, rel=0.15) and cut.interval[0] < cut.value < cut.interval[1]
    with pytest.raises(ValueError, match="sets of like sizes"):
        kernel_distance(a, b[:3], block=100)


@pytest.mark.parametrize("wrong", [np.zeros((1, 4)), np.zeros(4), np.full((3, 4), np.inf), np.zeros((3, 5))], ids=str)
def test_sets_that_cannot_be_compared_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="features: expected .*, got .*; "):
        kernel_distance(wrong, drawn(0, 4))
