"""The Inception Score: how sure a classifier is of every image, and how different the images are."""

from __future__ import annotations

import numpy as np

SPLITS = 10


def inception_score(probabilities: np.ndarray, splits: int = SPLITS) -> tuple[float, float]:
    """Mean and standard deviation over `splits` parts, in the order of the rows, of exp(E KL(p(y|x) || p(y))).

    probabilities: [N, K] of N images; whose classifier it is decides the scale, so that only scores of one classifier and one
    N can be compared ("Improved Techniques for Training GANs"). With fewer images than splits, each image is a part of its own
    and the score is 1. The deviation is 0 for one part.
    Raises ValueError for rows that are no probabilities.
    """
    rows = np.asarray(probabilities, dtype=np.float64)
    if rows.ndim != 2 or not len(rows) or splits < 1:
        raise ValueError(f"probabilities: expected [N, K] with N >= 1 and splits >= 1, got {rows.shape} and {splits}; correct "
                         "them")  # fmt: skip
    if not np.isfinite(rows).all() or (rows < 0).any() or not np.allclose(rows.sum(1), 1, atol=1e-4):
        raise ValueError("probabilities: expected rows of at least 0 that add up to 1, got others; apply a softmax")
    scores = []
    # parts of ceil(N / splits) rows, as the published code and torch.chunk cut them
    size = -(-len(rows) // splits)
    for part in (rows[first : first + size] for first in range(0, len(rows), size)):
        share = part.mean(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(part > 0, part * (np.log(part) - np.log(share)), 0.0)
        scores.append(np.exp(terms.sum(1).mean()))
    deviation = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
    return float(np.mean(scores)), deviation
