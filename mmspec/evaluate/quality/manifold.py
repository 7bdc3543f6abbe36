"""Precision and recall of generated samples: how many look like real ones, and how many real ones are covered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

NEIGHBOUR = 3
ROWS = 1024  # distances of so many rows are held at once
Features = np.ndarray


def precision_recall(made: Features, real: Features, neighbour: int = NEIGHBOUR) -> tuple[float, float]:
    """Shares of made rows inside the real ones' manifold, and of real rows inside the made ones'.

    A set's manifold is every ball around one of its rows that reaches to the row's `neighbour`-th nearest other ("Improved
    Precision and Recall Metric for Assessing Generative Models"). Both depend on N: compare at equal N.
    made, real: [N, d] and [M, d].   Raises ValueError for shapes that differ in d, and for sets of at most `neighbour` rows.
    """
    made, real = (np.asarray(one, dtype=np.float64) for one in (made, real))
    if made.ndim != 2 or real.ndim != 2 or made.shape[1] != real.shape[1] or min(len(made), len(real)) <= neighbour:
        raise ValueError(f"features: expected [N, d] and [M, d] with more than {neighbour} rows, got {made.shape} and "
                         f"{real.shape}; make more images")  # fmt: skip
    return _inside(made, real, _radii(real, neighbour)), _inside(real, made, _radii(made, neighbour))


def _radii(rows: np.ndarray, neighbour: int) -> np.ndarray:
    """Squared distance of every row to its `neighbour`-th nearest other."""
    return np.concatenate([np.partition(part, neighbour, axis=1)[:, neighbour] for part in _distances(rows, rows)])


def _inside(rows: np.ndarray, centers: np.ndarray, radii: np.ndarray) -> float:
    hits = [(part <= radii).any(1) for part in _distances(rows, centers)]
    return float(np.concatenate(hits).mean())


def _distances(rows: np.ndarray, others: np.ndarray) -> Iterator[np.ndarray]:
    """Squared distances [ROWS, M], part after part. Of a row to itself 0, however the sums round."""
    squares = np.square(others).sum(1)
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        found = np.maximum(np.square(part).sum(1)[:, None] + squares - 2 * part @ others.T, 0.0)
        if rows is others:
            found[np.arange(len(part)), first + np.arange(len(part))] = 0.0
        yield found
