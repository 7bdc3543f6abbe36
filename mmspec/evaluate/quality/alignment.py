"""Whether samples show what was asked for, from their features and those of the requests."""

from __future__ import annotations

import numpy as np

CANDIDATES = 32  # prompts a sample is told apart from, its own among them
Features = np.ndarray


def clip_score(images: Features, prompts: Features) -> float:
    """100 times the mean cosine of each image with its own prompt; features float [N, d] of norm one."""
    return float(100 * (images * prompts).sum(-1).mean())


def retrieval(images: Features, prompts: Features, texts: list[str], candidates: int = CANDIDATES) -> float:
    """Share of images whose own prompt is the nearest of `candidates` different ones: its own and those that follow.

    images, prompts: float [N, d] of norm one; texts: the N prompts. Where fewer different prompts exist, of those.
    """
    nearness, right = images @ prompts.T, 0
    for row, text in enumerate(texts):
        best, seen = nearness[row, row], {text}
        for step in range(1, len(texts)):
            column = (row + step) % len(texts)
            if len(seen) == candidates:
                break
            if texts[column] not in seen:
                seen.add(texts[column])
                best = max(best, nearness[row, column])
        right += bool(best == nearness[row, row])
    return right / len(texts)
