"""The protocols of feature extractors and scorers, and CLIP scores and retrieval over features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.evaluate.base.prompt import EvaluationPrompt


@dataclass(frozen=True, slots=True)
class ExtractedFeatures:
    """Features of pictures."""

    features: np.ndarray  # float32 [N, d]
    probabilities: np.ndarray | None = None  # float32 [N, K] over a classifier's classes, None without a classifier


class FeatureExtractor(Protocol):
    """A network whose features are used for Frechet and kernel distances, precision, recall, Inception and CLIP scores."""

    name: str  # figures of different extractors cannot be compared
    hash: str  # of weights and preparation
    dim: int  # the length of a feature, d; covariances of fewer images are singular

    def images(self, images: Sequence[Image]) -> ExtractedFeatures:
        """Return the features of RGB pictures of any size, which the extractor resizes."""
        ...

    def texts(self, texts: Sequence[str]) -> np.ndarray | None:
        """Return float32 [N, d] in the space of the pictures, or None for an extractor that reads no text."""
        ...


class Scorer(Protocol):
    """A figure of every single sample; larger is better."""

    name: str  # a column of tables
    hash: str  # of weights and preparation
    about: str  # a line that describes the figure

    def __call__(self, outputs: Sequence[Any], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        """Return float64 [N] of texts, pictures, or videos uint8 [F, H, W, 3]; NaN where there is nothing to measure."""
        ...


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return rows [N, d] scaled to length 1; rows of zeros are unchanged."""
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


def clip_scores(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Return 100 max(cos, 0) of every image with its own text, float64 [N] of rows [N, d] of any length ("CLIPScore")."""
    return 100 * np.maximum((unit_rows(np.float64(images)) * unit_rows(np.float64(texts))).sum(-1), 0.0)


CANDIDATES = 32  # prompts per sample in retrieval, including its own


def clip_score(images: np.ndarray, prompts: np.ndarray) -> float:
    """Return 100 times the mean cosine of each image with its own prompt; features float [N, d] of norm 1."""
    return float(100 * (images * prompts).sum(-1).mean())


def retrieval(images: np.ndarray, prompts: np.ndarray, texts: list[str], candidates: int = CANDIDATES) -> float:
    """Return the share of images whose own prompt is nearest among `candidates` different prompts; features float [N,
    d] of norm 1. The candidates are the image's own prompt and those that follow; all prompts, where there are fewer.
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
