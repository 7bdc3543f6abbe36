"""Means and covariances of features that come in parts: sums in float64, which merge."""

from __future__ import annotations

from collections.abc import Iterable
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
