"""Moments of parts merge to those of all rows, whatever the parts and however far from zero the rows lie."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest

from mmspec.evaluate.quality.frechet import Moments, distance, frechet, frechet_interval


def rows(count: int = 300, mean: float = 1e4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 0.5, (count, 6))


def of_parts(parts: list[np.ndarray]) -> Moments:
    return reduce(add, map(Moments.of, parts))


def close(a: Moments, b: Moments) -> bool:
    return (
        a.count == b.count and np.allclose(a.mean, b.mean, rtol=1e-9) and np.allclose(a.scatter, b.scatter, rtol=1e-9)
    )


@pytest.mark.parametrize("cuts", [(1,), (150,), (1, 2, 3), (0, 0, 299, 300), (7, 100, 288)])
def test_merged_parts_match_a_single_pass_in_any_order(cuts: tuple) -> None:
    found = rows()
    parts = np.split(found, cuts)
    whole = Moments.of(found)
    assert close(of_parts(parts), whole) and close(of_parts(parts[::-1]), whole)
    assert np.allclose(whole.covariance, np.cov(found, rowvar=False), rtol=1e-9)


def test_sums_of_squares_would_have_lost_the_covariance() -> None:
    far = rows(mean=3e7)
    naive = (far.T @ far - len(far) * np.outer(far.mean(0), far.mean(0))) / (len(far) - 1)
    told = np.cov(far, rowvar=False)
    assert not np.allclose(naive, told, rtol=1e-2)
    assert np.allclose(of_parts(np.split(far, 10)).covariance, told, rtol=1e-6)


def test_the_distance_of_merged_parts_matches_a_single_pass() -> None:
    a, b = rows(mean=0), rows(mean=0.3, seed=1)
    merged = distance(of_parts(np.split(a, 4)), of_parts(np.split(b, (3, 200))))
    assert merged == pytest.approx(frechet(a, b), rel=1e-9)


def test_the_interval_holds_the_value_and_is_wider_for_fewer_rows() -> None:
    a, b = rows(200, 0), rows(200, 0.3, 1)
    few, many = frechet_interval(a[:40], b[:40], 100), frechet_interval(a, b, 100)
    assert many[0] < frechet(a, b) < many[1] and few[1] - few[0] > many[1] - many[0]


@pytest.mark.parametrize(
    "wrong", [np.zeros(3), np.zeros((2, 0)), np.full((2, 2), np.nan), np.zeros((1, 2, 3))], ids=str
)
def test_invalid_features_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="features: expected .*, got .*; "):
        Moments.of(wrong)


def test_single_rows_and_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="N >= 2"):
        _ = Moments.of(np.zeros((1, 3))).covariance
    with pytest.raises(ValueError, match="one length, got 3 and 4"):
        Moments.of(np.zeros((2, 3))) + Moments.of(np.zeros((2, 4)))
