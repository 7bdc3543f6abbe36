"""Kernel distance (KID) and Inception Score by torchmetrics, precision and recall of generated samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mmspec.evaluate.quality.metrics import Features, checked_sets, computed, metric, updated

BLOCK, BLOCKS = 1000, 100  # rows of a block, and blocks drawn from larger sets


def kernel_distance(a: Features, b: Features) -> tuple[float, float]:
    """Return the squared maximum mean discrepancy of feature sets [N, d] and [M, d] under (x y / d + 1)^3, known as KID,
    and its deviation over blocks. It is unbiased ("Demystifying MMD GANs") and may be negative. Sets of at most `BLOCK`
    rows are a single block, of deviation 0."""
    a, b = checked_sets(a, b)
    size = min(len(a), len(b), BLOCK)
    blocks = 1 if len(a) == len(b) == size else BLOCKS
    built = updated("kid", "KernelInceptionDistance", a, b, subsets=blocks, subset_size=size, normalize=True)
    return computed(built)


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
_LEAST = 1e-30  # probability whose logarithm stands for that of 0


def inception_score(probabilities: np.ndarray, splits: int = SPLITS) -> tuple[float, float]:
    """Return the mean and standard deviation over `splits` parts, in a fixed random order, of exp(E KL(p(y|x) || p(y)))
    for class probabilities [N, K] of N images. The scale depends on the classifier, so only scores of the same
    classifier and N can be compared ("Improved Techniques for Training GANs"). The deviation is 0 for a single part."""
    rows = np.asarray(probabilities, dtype=np.float64)
    if rows.ndim != 2 or not len(rows) or splits < 1:
        raise ValueError(
            f"probabilities: expected [N, K] with N >= 1 and splits >= 1, got {rows.shape} and {splits}; correct them"
        )
    if not np.isfinite(rows).all() or (rows < 0).any() or not np.allclose(rows.sum(1), 1, atol=1e-4):
        raise ValueError("probabilities: expected rows of at least 0 that add up to 1, got others; apply a softmax")
    built = metric("inception", "InceptionScore", rows.shape[1], splits=splits)
    built.update(torch.from_numpy(np.log(rows.clip(_LEAST))))
    mean, deviation = computed(built)
    return mean, deviation if min(splits, len(rows)) > 1 else 0.0
