"""Distances between feature sets whose law is known, and intervals that cover them."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.evaluate.quality.frechet import distances, frechet


def gaussian(mean: float, scale: float, seed: int, count: int = 4000, size: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, scale, (count, size))


def whitened(seed: int, count: int = 500, size: int = 4) -> np.ndarray:
    """A sample whose mean is 0 and whose covariance is 1 exactly."""
    drawn = gaussian(0, 1, seed, count, size)
    drawn -= drawn.mean(0)
    return drawn @ np.linalg.inv(np.linalg.cholesky(np.cov(drawn, rowvar=False))).T


def test_the_distance_of_known_gaussians() -> None:
    base = whitened(0)
    stretch = np.diag([1.0, 2.0, 3.0, 0.5])
    moved = whitened(1) @ stretch + np.array([3.0, 0, 4.0, 0])
    expected = 25 + sum((s - 1) ** 2 for s in (1, 2, 3, 0.5))
    assert frechet(base, moved) == pytest.approx(expected, rel=1e-7)


def test_covariances_that_do_not_commute() -> None:
    turn = np.linalg.qr(gaussian(0, 1, 3, 4, 4))[0]
    a, b = whitened(0) @ np.diag([1.0, 2, 3, 4]), whitened(1) @ np.diag([4.0, 1, 1, 2]) @ turn
    scipy = pytest.importorskip("scipy.linalg")
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    expected = np.trace(cov_a + cov_b - 2 * scipy.sqrtm(cov_a @ cov_b).real)
    assert frechet(a, b) == pytest.approx(expected, rel=1e-6)
    assert frechet(a, b) == pytest.approx(frechet(b, a), rel=1e-6)


def test_a_set_is_no_distance_from_itself_in_any_rank() -> None:
    few = gaussian(0, 1, 0, count=5, size=16)
    assert abs(frechet(few, few)) < 1e-5


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.zeros((4, 2)), np.zeros((4, 3))),
        (np.zeros((1, 2)), np.zeros((1, 2))),
        (np.zeros(4), np.zeros(4)),
        (np.full((4, 2), np.nan), np.zeros((4, 2))),
    ],
)
def test_sets_that_cannot_be_compared_are_refused(a: np.ndarray, b: np.ndarray) -> None:
    with pytest.raises(ValueError, match="features: expected .*, got .*; "):
        frechet(a, b)


def test_an_exact_method_is_as_far_as_plain_halves_are_apart() -> None:
    ratios = []
    for seed in range(20):
        sets = [gaussian(0, 1, 100 * seed + i, 100, 8) for i in range(3)]
        found = distances(sets[0], (sets[1], sets[2]), resamples=40)
        ratios.append(found.ratio)
        assert found.frechet_interval[0] < found.frechet < found.frechet_interval[1]
        assert found.own == pytest.approx(frechet(sets[1], sets[2]))
    assert np.mean(ratios) == pytest.approx(1, abs=0.1)


def test_the_interval_covers_distances_of_other_samples() -> None:
    drawn = [
        distances(gaussian(1, 1, 3 * s, 300), (gaussian(0, 1, 3 * s + 1, 300), gaussian(0, 1, 3 * s + 2, 300)), 50)
        for s in range(20)
    ]
    truth = np.mean([sample.frechet for sample in drawn])
    covered = [sample.frechet_interval[0] <= truth <= sample.frechet_interval[1] for sample in drawn]
    assert np.mean(covered) > 0.7 and all(sample.ratio_interval[0] > 1 for sample in drawn)
