"""What measures pictures, films and texts: the two protocols all metrics are behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.evaluate.engine.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Read:
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

    def images(self, images: Sequence[Image]) -> Read:
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

    def __call__(self, made: Sequence[Any], prompts: Sequence[Prompt]) -> np.ndarray:
        """float64 [N], NaN where there is nothing to measure.   made: texts, pictures, or films uint8 [F, H, W, 3]."""
        ...


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows [N, d] of length one, rows of zeros as they are."""
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


def clip_scores(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """100 max(cos, 0) of every image with its own text, float64 [N]; rows [N, d] of any length ("CLIPScore")."""
    return 100 * np.maximum((unit(np.float64(images)) * unit(np.float64(texts))).sum(-1), 0.0)
