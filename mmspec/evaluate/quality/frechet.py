"""The Frechet distance between feature sets, from moments that merge, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

Features = np.ndarray


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of a feature set. Parts merge in any order to the result of a single pass over all rows, up to
    rounding. Sums are taken around each part's own mean (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise
    Algorithm for Computing Sample Variances"): with plain sums of squares, a large mean would cancel small covariances.
    """

    count: int  # of rows
    mean: np.ndarray  # float64 [d]
    scatter: np.ndarray  # float64 [d, d], summed outer products of the centred rows

    @classmethod
    def of(cls, features: Features) -> Self:
        """Return the moments of finite rows [N, d]; N may be 0."""
        rows = np.asarray(features, dtype=np.float64)
        if rows.ndim != 2 or not rows.shape[1]:
            raise ValueError(f"features: expected rows [N, d], got {rows.shape}; reshape them")
        if not np.isfinite(rows).all():
            raise ValueError("features: expected finite numbers, got NaN or Inf; look at the images they are from")
        mean = rows.mean(0) if len(rows) else np.zeros(rows.shape[1])
        return cls(len(rows), mean, (rows - mean).T @ (rows - mean))

    def __add__(self, other: Moments) -> Moments:
        if self.dim != other.dim:
            raise ValueError(f"features: expected one length, got {self.dim} and {other.dim}; use one extractor")
        count = self.count + other.count
        apart = other.mean - self.mean
        share = other.count / max(count, 1)
        scatter = self.scatter + other.scatter + np.outer(apart, apart) * (self.count * share)
        return Moments(count, self.mean + apart * share, scatter)

    @property
    def dim(self) -> int:
        return len(self.mean)

    @property
    def covariance(self) -> np.ndarray:
        """Return the covariance float64 [d, d], over N - 1."""
        if self.count < 2:
            raise ValueError(f"features: expected N >= 2 rows, got {self.count}; make more images")
        return self.scatter / (self.count - 1)


RESAMPLES = 200


def frechet(a: Features, b: Features) -> float:
    """Return the Frechet distance between Gaussians with the means and covariances of two feature sets, float [N, d].
    It is |m_a - m_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^(1/2)) in float64, with the trace of the root from eigenvalues
    ("GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium"). It falls with N even between
    samples of the same distribution, so sets of different sizes are refused."""
    _check(a, b)
    return distance(Moments.of(a), Moments.of(b))


def _check(*sets: Features) -> None:
    shape = sets[0].shape
    if len(shape) != 2 or shape[0] < 2 or any(features.shape != shape for features in sets):
        shapes = " and ".join(str(features.shape) for features in sets)
        raise ValueError(f"features: expected sets [N, d] of one shape with N >= 2, got {shapes}; cut them to equal N")
    if not all(np.isfinite(features).all() for features in sets):
        raise ValueError("features: expected finite numbers, got NaN or Inf; look at the images they are from")


def distance(a: Moments, b: Moments) -> float:
    """Return `frechet` of sets with known moments, of any sizes; rounding can make it negative for equal sets."""
    if a.dim != b.dim:
        raise ValueError(f"features: expected one length, got {a.dim} and {b.dim}; use one extractor")
    value, vector = np.linalg.eigh(a.covariance)
    root = (vector * _root(value)) @ vector.T
    shared = _root(np.linalg.eigvalsh(root @ b.covariance @ root)).sum()
    return float(np.square(a.mean - b.mean).sum() + np.trace(a.covariance) + np.trace(b.covariance) - 2 * shared)


def _root(eigenvalue: np.ndarray) -> np.ndarray:
    """Return square roots, with eigenvalues that are rounding errors as 0. With fewer rows than features, most are."""
    floor = len(eigenvalue) * np.finfo(np.float64).eps * eigenvalue.max()
    return np.sqrt(np.where(eigenvalue > floor, eigenvalue, 0.0))


@dataclass(frozen=True, slots=True)
class Distances:
    """Frechet distances of a method's images from plain decoding's; the intervals are 90 % bootstrap intervals."""

    frechet: float  # the mean distance to the two halves of plain images
    own: float  # the distance between those halves, the reference
    ratio: float  # frechet / own; 1 on average for an exact method
    frechet_interval: tuple[float, float]
    ratio_interval: tuple[float, float]


def distances(
    method: Features, halves: tuple[Features, Features], resamples: int = RESAMPLES, seed: int = 0
) -> Distances:
    """Return the distances of a method's images, float [N, d], from two halves of plain images of the same N, with
    other seeds; all sets are resampled together. Resampled sets hold repeats, which raises every distance between them.
    The interval is therefore the spread of the resampled values around their mean, shifted to the measured value."""
    sets = (method, *halves)
    _check(*sets)
    frechets, owns = [], []
    for picked in _resampled(sets, resamples, seed):
        to_halves, own = _pair(picked)
        frechets.append(to_halves)
        owns.append(own)
    value, own = _pair(sets)
    ratios = np.array(frechets) / np.array(owns)
    return Distances(value, own, value / own, _around(value, np.array(frechets)), _around(value / own, ratios))


def frechet_interval(a: Features, b: Features, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """Return the 90 % bootstrap interval of `distance`, both sets resampled, shifted as in `distances`."""
    value = distance(Moments.of(a), Moments.of(b))
    values = [distance(*map(Moments.of, picked)) for picked in _resampled((a, b), resamples, seed)]
    return _around(value, np.array(values))


def _pair(sets: tuple[Features, ...]) -> tuple[float, float]:
    method, first, second = (Moments.of(features) for features in sets)
    return (distance(method, first) + distance(method, second)) / 2, distance(first, second)


def _resampled(sets: tuple[Features, ...], count: int, seed: int) -> Iterator[tuple[Features, ...]]:
    drawn = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(features[drawn.integers(len(features), size=len(features))] for features in sets)


def _around(value: float, values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values - values.mean(), [5, 95])
    return float(value + low), float(value + high)
