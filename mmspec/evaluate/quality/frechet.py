"""The Frechet distance between feature sets, from moments that merge, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

Features = np.ndarray


@dataclass(frozen=True, slots=True)
class Moments:
    """count: rows seen.   mean: float64 [d].   scatter: float64 [d, d], summed outer products of rows less the mean.

    Parts merge in any order to what one pass over all rows gives, up to rounding: sums are taken around each part's own mean
    (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances"), since sums of
    squares would lose what a large mean leaves of small covariances.
    """

    count: int
    mean: np.ndarray
    scatter: np.ndarray

    @classmethod
    def of(cls, features: Features) -> Self:
        """Of rows [N, d], none of them too.   Raises ValueError for another shape, and for NaN or Inf."""
        rows = np.asarray(features, dtype=np.float64)
        if rows.ndim != 2 or not rows.shape[1]:
            raise ValueError(f"features: expected rows [N, d], got {rows.shape}; reshape them")
        if not np.isfinite(rows).all():
            raise ValueError("features: expected finite numbers, got NaN or Inf; look at the images they are from")
        mean = rows.mean(0) if len(rows) else np.zeros(rows.shape[1])
        return cls(len(rows), mean, (rows - mean).T @ (rows - mean))

    @classmethod
    def of_parts(cls, parts: Iterable[Features]) -> Self:
        """Of rows that come in parts, never all of them in memory.   Raises ValueError as `of` does, and for no part."""
        found = None
        for part in parts:
            own = cls.of(part)
            found = own if found is None else found + own
        if found is None:
            raise ValueError("features: expected at least one part, got none; pass some")
        return found

    def __add__(self, other: Moments) -> Moments:
        """Those of both sets of rows.   Raises ValueError for features of other lengths."""
        if self.dim != other.dim:
            raise ValueError(f"features: expected one length, got {self.dim} and {other.dim}; use one extractor")
        count = self.count + other.count
        apart = other.mean - self.mean
        share = other.count / max(count, 1)
        scatter = self.scatter + other.scatter + np.outer(apart, apart) * (self.count * share)
        return Moments(count, self.mean + apart * share, scatter)

    @property
    def dim(self) -> int:
        """d, the length of a feature."""
        return len(self.mean)

    @property
    def covariance(self) -> np.ndarray:
        """float64 [d, d], over N - 1.   Raises ValueError for fewer than two rows."""
        if self.count < 2:
            raise ValueError(f"features: expected N >= 2 rows, got {self.count}; make more images")
        return self.scatter / (self.count - 1)


RESAMPLES = 200


def frechet(a: Features, b: Features) -> float:
    """The Frechet distance between Gaussians with the means and covariances of two feature sets float [N, d].

    |m_a - m_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^(1/2)) in float64, the root's trace from eigenvalues ("GANs Trained by a Two
    Time-Scale Update Rule Converge to a Local Nash Equilibrium"). It falls with N even between samples of one law: only
    distances at equal N and equal d can be compared, so sets of different sizes are refused.
    Raises ValueError for sets that differ in shape, hold less than two rows, or numbers that are not finite.
    """
    _check(a, b)
    return distance(Moments.of(a), Moments.of(b))


def _check(*sets: Features) -> None:
    shape = sets[0].shape
    if len(shape) != 2 or shape[0] < 2 or any(one.shape != shape for one in sets):
        shapes = " and ".join(str(one.shape) for one in sets)
        raise ValueError(f"features: expected sets [N, d] of one shape with N >= 2, got {shapes}; cut them to equal N")
    if not all(np.isfinite(one).all() for one in sets):
        raise ValueError("features: expected finite numbers, got NaN or Inf; look at the images they are from")


def distance(a: Moments, b: Moments) -> float:
    """`frechet` of sets whose moments are known, of any sizes: below 0 by rounding where they are one set.

    Raises ValueError for features of other lengths and fewer than two rows.
    """
    if a.dim != b.dim:
        raise ValueError(f"features: expected one length, got {a.dim} and {b.dim}; use one extractor")
    value, vector = np.linalg.eigh(a.covariance)
    root = (vector * _root(value)) @ vector.T
    shared = _root(np.linalg.eigvalsh(root @ b.covariance @ root)).sum()
    return float(np.square(a.mean - b.mean).sum() + np.trace(a.covariance) + np.trace(b.covariance) - 2 * shared)


def _root(eigenvalue: np.ndarray) -> np.ndarray:
    """Square roots, 0 for what is only rounding: with fewer rows than features most eigenvalues are."""
    floor = len(eigenvalue) * np.finfo(np.float64).eps * eigenvalue.max()
    return np.sqrt(np.where(eigenvalue > floor, eigenvalue, 0.0))


@dataclass(frozen=True, slots=True)
class Distances:
    """A method's images against plain decoding's.

    frechet: mean distance to the two halves of plain images.   own: between those halves, the yardstick.
    ratio: frechet / own; 1 is what an exact method has on average.   *_interval: 90 % bootstrap intervals.
    """

    frechet: float
    own: float
    ratio: float
    frechet_interval: tuple[float, float]
    ratio_interval: tuple[float, float]


def distances(
    method: Features, halves: tuple[Features, Features], resamples: int = RESAMPLES, seed: int = 0
) -> Distances:
    """`method` float [N, d] and two halves of plain images of the same N, of other seeds; all sets resampled together.

    Resampled sets hold repeats, which lifts every distance between them; the interval is the spread of the resampled
    values around their mean, moved to the measured value.   Raises ValueError as `frechet` does.
    """
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
    """The 90 % bootstrap interval of `distance`, both sets resampled at their sizes, moved to the measured value as in
    `distances`.   Raises ValueError as `distance` does."""
    value = distance(Moments.of(a), Moments.of(b))
    found = [distance(*map(Moments.of, picked)) for picked in _resampled((a, b), resamples, seed)]
    return _around(value, np.array(found))


def _pair(sets: tuple[Features, ...]) -> tuple[float, float]:
    method, first, second = (Moments.of(one) for one in sets)
    return (distance(method, first) + distance(method, second)) / 2, distance(first, second)


def _resampled(sets: tuple[Features, ...], count: int, seed: int) -> Iterator[tuple[Features, ...]]:
    drawn = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(one[drawn.integers(len(one), size=len(one))] for one in sets)


def _around(value: float, found: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(found - found.mean(), [5, 95])
    return float(value + low), float(value + high)
