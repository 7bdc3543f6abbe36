"""The kernel distance between two sets of features, which does not depend on how many there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmspec.evaluate.quality.resampling import LEVELS, RESAMPLES

BLOCK = 1000  # rows whose kernel matrix is held at once
Features = np.ndarray


@dataclass(frozen=True, slots=True)
class KernelDistance:
    """value: below 0 too, for sets of one law about as often as above.   interval: the bootstrap's 90 %, None where there
    are too few rows to resample."""

    value: float
    interval: tuple[float, float] | None


def kernel_distance(
    a: Features, b: Features, block: int = BLOCK, resamples: int = RESAMPLES, seed: int = 0
) -> KernelDistance:
    """The squared maximum mean discrepancy of features [N, d] and [M, d] under (x y / d + 1)^3, unbiased at any N and M
    ("Demystifying MMD GANs"; known as KID).

    Sets above `block` rows are cut, in an order drawn from `seed`, into blocks of at most that many, whose values
    are averaged. Resampled rows are weights of the rows as they are: a row that is drawn twice is never compared
    with itself, which would lift the distance. Where there are several blocks, blocks are resampled.
    Raises ValueError for other shapes, fewer than two rows, and NaN or Inf.
    """
    a, b = (_checked(one) for one in (a, b))
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"features: expected one length, got {a.shape[1]} and {b.shape[1]}; use one extractor")
    drawn = np.random.default_rng(seed)
    blocks = -(-max(len(a), len(b)) // block)
    if blocks == 1:
        kernels = tuple(_kernel(x, y) for x, y in ((a, a), (b, b), (a, b)))
        found = [_unbiased(kernels, _weights(drawn, len(a)), _weights(drawn, len(b))) for _ in range(resamples)]
        value = _unbiased(kernels, np.ones(len(a)), np.ones(len(b)))
        return KernelDistance(value, _around(value, found))
    cut = [[one[rows] for rows in np.array_split(drawn.permutation(len(one)), blocks)] for one in (a, b)]
    if min(len(rows) for part in cut for rows in part) < 2:
        raise ValueError(f"features: expected sets of like sizes, got {len(a)} and {len(b)} rows; cut the larger one")
    values = np.array([kernel_distance(x, y, block, 0).value for x, y in zip(*cut, strict=True)])
    found = values[drawn.integers(blocks, size=(resamples, blocks))].mean(1)
    return KernelDistance(float(values.mean()), _around(float(values.mean()), found))


def _checked(features: Features) -> np.ndarray:
    rows = np.asarray(features, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"features: expected rows [N, d] with N >= 2, got {rows.shape}; make more images")
    if not np.isfinite(rows).all():
        raise ValueError("features: expected finite numbers, got NaN or Inf; look at the images they are from")
    return rows


def _kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x @ y.T / x.shape[1] + 1.0) ** 3


def _weights(drawn: np.random.Generator, count: int) -> np.ndarray:
    """How often each row stands in a resampled set."""
    return drawn.multinomial(count, np.full(count, 1 / count)).astype(np.float64)


def _unbiased(kernels: tuple[np.ndarray, ...], wa: np.ndarray, wb: np.ndarray) -> float:
    """Means over pairs of different rows within the sets, and over all pairs across them."""
    within_a, within_b, across = kernels

    def apart(kernel: np.ndarray, weight: np.ndarray) -> float:
        pairs = weight.sum() ** 2 - np.square(weight).sum()
        return (weight @ kernel @ weight - np.square(weight) @ np.diag(kernel)) / pairs if pairs else np.nan

    return float(apart(within_a, wa) + apart(within_b, wb) - 2 * (wa @ across @ wb) / (wa.sum() * wb.sum()))


def _around(value: float, found: list[float] | np.ndarray) -> tuple[float, float] | None:
    """The spread of resampled values around their mean, moved to the measured one."""
    known = np.array([one for one in found if np.isfinite(one)])
    if len(known) < 2:
        return None
    low, high = np.percentile(known - known.mean(), LEVELS)
    return float(value + low), float(value + high)
