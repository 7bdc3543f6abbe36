"""Kernel distance (KID), precision and recall, and Inception Score of generated samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mmspec.evaluate.engine.statistics import LEVELS, RESAMPLES

BLOCK = 1000  # rows per kernel matrix
Features = np.ndarray


@dataclass(frozen=True, slots=True)
class KernelDistance:
    value: float  # unbiased; for sets of the same distribution it is negative about half of the time
    interval: tuple[float, float] | None  # the 90 % bootstrap interval, None with too few rows to resample


def kernel_distance(
    a: Features, b: Features, block: int = BLOCK, resamples: int = RESAMPLES, seed: int = 0
) -> KernelDistance:
    """Return the squared maximum mean discrepancy of feature sets [N, d] and [M, d] under (x y / d + 1)^3, known as
    KID. It is unbiased at any N and M ("Demystifying MMD GANs"). Larger sets are cut, in an order drawn from `seed`,
    into blocks of at most `block` rows whose values are averaged. Resampling weights the rows: a row that is drawn
    twice is never compared with itself, which would raise the distance. With several blocks, blocks are resampled."""
    a, b = (_checked(rows_) for rows_ in (a, b))
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"features: expected one length, got {a.shape[1]} and {b.shape[1]}; use one extractor")
    drawn = np.random.default_rng(seed)
    blocks = -(-max(len(a), len(b)) // block)
    if blocks == 1:
        kernels = tuple(_kernel(x, y) for x, y in ((a, a), (b, b), (a, b)))
        resampled = [_unbiased(kernels, _weights(drawn, len(a)), _weights(drawn, len(b))) for _ in range(resamples)]
        value = _unbiased(kernels, np.ones(len(a)), np.ones(len(b)))
        return KernelDistance(value, _around(value, resampled))
    cut = [[rows_[rows] for rows in np.array_split(drawn.permutation(len(rows_)), blocks)] for rows_ in (a, b)]
    if min(len(rows) for part in cut for rows in part) < 2:
        raise ValueError(f"features: expected sets of like sizes, got {len(a)} and {len(b)} rows; cut the larger one")
    values = np.array([kernel_distance(x, y, block, 0).value for x, y in zip(*cut, strict=True)])
    resampled = values[drawn.integers(blocks, size=(resamples, blocks))].mean(1)
    return KernelDistance(float(values.mean()), _around(float(values.mean()), resampled))


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
    """Return how often each row occurs in a resampled set."""
    return drawn.multinomial(count, np.full(count, 1 / count)).astype(np.float64)


def _unbiased(kernels: tuple[np.ndarray, ...], wa: np.ndarray, wb: np.ndarray) -> float:
    """Return the distance from means over pairs of different rows within the sets, and over all pairs across them."""
    within_a, within_b, across = kernels

    def apart(kernel: np.ndarray, weight: np.ndarray) -> float:
        pairs = weight.sum() ** 2 - np.square(weight).sum()
        return (weight @ kernel @ weight - np.square(weight) @ np.diag(kernel)) / pairs if pairs else np.nan

    return float(apart(within_a, wa) + apart(within_b, wb) - 2 * (wa @ across @ wb) / (wa.sum() * wb.sum()))


def _around(value: float, values: list[float] | np.ndarray) -> tuple[float, float] | None:
    """Return the spread of resampled values around their mean, shifted to the measured value."""
    known = np.array([value for value in values if np.isfinite(value)])
    if len(known) < 2:
        return None
    low, high = np.percentile(known - known.mean(), LEVELS)
    return float(value + low), float(value + high)


NEIGHBOUR = 3
ROWS = 1024  # rows whose distances are held at once


def precision_recall(generated: Features, real: Features, neighbour: int = NEIGHBOUR) -> tuple[float, float]:
    """Return the share of generated rows [N, d] inside the real manifold, and of real rows [M, d] inside the generated
    manifold. A set's manifold is the union of balls around its rows, each reaching to the row's `neighbour`-th nearest
    neighbour ("Improved Precision and Recall Metric for Assessing Generative Models"). Both depend on N: compare at
    equal N."""
    generated, real = (np.asarray(features, dtype=np.float64) for features in (generated, real))
    if (
        generated.ndim != 2
        or real.ndim != 2
        or generated.shape[1] != real.shape[1]
        or min(len(generated), len(real)) <= neighbour
    ):
        raise ValueError(
            f"features: expected [N, d] and [M, d] with more than {neighbour} rows, got {generated.shape} and "
            f"{real.shape}; make more images"
        )
    return _share_inside(generated, real, _radii(real, neighbour)), _share_inside(
        real, generated, _radii(generated, neighbour)
    )


def _radii(rows: np.ndarray, neighbour: int) -> np.ndarray:
    """Return the squared distance of every row to its `neighbour`-th nearest neighbour."""
    return np.concatenate([np.partition(part, neighbour, axis=1)[:, neighbour] for part in _distance_parts(rows, rows)])


def _share_inside(rows: np.ndarray, centers: np.ndarray, radii: np.ndarray) -> float:
    hits = [(part <= radii).any(1) for part in _distance_parts(rows, centers)]
    return float(np.concatenate(hits).mean())


def _distance_parts(rows: np.ndarray, others: np.ndarray) -> Iterator[np.ndarray]:
    """Yield squared distances [ROWS, M] part by part; the distance of a row to itself is 0 despite rounding."""
    squares = np.square(others).sum(1)
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        squared = np.maximum(np.square(part).sum(1)[:, None] + squares - 2 * part @ others.T, 0.0)
        if rows is others:
            squared[np.arange(len(part)), first + np.arange(len(part))] = 0.0
        yield squared


SPLITS = 10


def inception_score(probabilities: np.ndarray, splits: int = SPLITS) -> tuple[float, float]:
    """Return the mean and standard deviation over `splits` parts, in order, of exp(E KL(p(y|x) || p(y))), from
    probabilities [N, K]. The scale depends on the classifier, so only scores of the same classifier and N can be
    compared ("Improved Techniques for Training GANs"). With fewer images than splits, each image is its own part and
    the score is 1. The deviation is 0 for a single part."""
    rows = np.asarray(probabilities, dtype=np.float64)
    if rows.ndim != 2 or not len(rows) or splits < 1:
        raise ValueError(
            f"probabilities: expected [N, K] with N >= 1 and splits >= 1, got {rows.shape} and {splits}; correct them"
        )
    if not np.isfinite(rows).all() or (rows < 0).any() or not np.allclose(rows.sum(1), 1, atol=1e-4):
        raise ValueError("probabilities: expected rows of at least 0 that add up to 1, got others; apply a softmax")
    scores = []
    # parts of ceil(N / splits) rows, as in the published code and torch.chunk
    size = -(-len(rows) // splits)
    for part in (rows[first : first + size] for first in range(0, len(rows), size)):
        share = part.mean(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(part > 0, part * (np.log(part) - np.log(share)), 0.0)
        scores.append(np.exp(terms.sum(1).mean()))
    deviation = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
    return float(np.mean(scores)), deviation
