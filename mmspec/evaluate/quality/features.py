"""The protocols of feature extractors and scorers, and CLIP scores and retrieval over features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.evaluate.engine.prompt import EvaluationPrompt


@dataclass(frozen=True, slots=True)
class ExtractedFeatures:
    """features: float32 [N, d].   probabilities: float32 [N, K] of a classifier's classes, None where there is none."""

    features: np.ndarray
    probabilities: np.ndarray | None = None


class FeatureExtractor(Protocol):
    """A network that Frechet and kernel distances, precision, recall, Inception and CLIP scores are taken in.

    name: as every table calls it; figures of different extractors cannot be compared.   hash: of weights and preparation.
    dim: d, the length of a feature; covariances of fewer images are singular.
    """

    name: str
    hash: str
    dim: int

    def images(self, images: Sequence[Image]) -> ExtractedFeatures:
        """Of RGB pictures of any size, which the extractor brings to its own."""
        ...

    def texts(self, texts: Sequence[str]) -> np.ndarray | None:
        """float32 [N, d] in the space of the pictures; None of an extractor that reads no text."""
        ...


class Scorer(Protocol):
    """A figure of every single sample, more of which is better.   name: of the figure, a column of tables.   hash: as above.
    about: what it says, one line."""

    name: str
    hash: str
    about: str

    def __call__(self, made: Sequence[Any], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        """float64 [N], NaN where there is nothing to measure.   made: texts, pictures, or films uint8 [F, H, W, 3]."""
        ...


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows [N, d] of length one, rows of zeros as they are."""
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


def clip_scores(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """100 max(cos, 0) of every image with its own text, float64 [N]; rows [N, d] of any length ("CLIPScore")."""
    return 100 * np.maximum((unit_rows(np.float64(images)) * unit_rows(np.float64(texts))).sum(-1), 0.0)


CANDIDATES = 32  # prompts a sample is told apart from, its own among them


def clip_score(images: np.ndarray, prompts: np.ndarray) -> float:
    """100 times the mean cosine of each image with its own prompt; features float [N, d] of norm one."""
    return float(100 * (images * prompts).sum(-1).mean())


def retrieval(images: np.ndarray, prompts: np.ndarray, texts: list[str], candidates: int = CANDIDATES) -> float:
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
