"""CLIP scores, retrieval by hand, and how much of a codebook is used."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.evaluate.image.figures import codebook_usage
from mmspec.evaluate.quality.features import clip_score, retrieval


def test_clip_score_is_the_mean_cosine() -> None:
    images = np.array([[1.0, 0], [0, 1]])
    assert clip_score(images, np.array([[1.0, 0], [0.6, 0.8]])) == pytest.approx(90)


def test_retrieval_counts_images_whose_own_prompt_is_nearest() -> None:
    texts = ["a", "b", "c"]
    prompts = np.eye(3)
    images = np.array([[1, 0, 0], [0.9, 0.5, 0], [0.2, 0.1, 0.3]])
    assert retrieval(images, prompts, texts) == pytest.approx(2 / 3)
    assert retrieval(images, prompts, texts, candidates=2) == 1  # b is told apart from c only
    # a prompt that stands twice is one candidate
    assert retrieval(images[:2], prompts[[0, 0]], ["a", "a"]) == 1


def test_usage_of_codes() -> None:
    assert codebook_usage(np.array([[0, 1], [2, 3]]), 16) == (4, pytest.approx(4))
    assert codebook_usage(np.zeros((3, 3), dtype=int), 16) == (1, pytest.approx(1))
