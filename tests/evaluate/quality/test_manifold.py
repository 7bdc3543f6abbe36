"""Precision and recall, against every ball looked at by itself."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.evaluate.quality import generative_metrics
from mmspec.evaluate.quality.features import clip_scores
from mmspec.evaluate.quality.generative_metrics import inception_score, precision_recall


def drawn(seed: int, count: int, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, (count, 3))


def by_hand(rows: np.ndarray, centers: np.ndarray, k: int) -> float:
    radii = [sorted(np.linalg.norm(center - other) for other in centers)[k] for center in centers]
    hits = [any(np.linalg.norm(row - c) <= r for c, r in zip(centers, radii, strict=True)) for row in rows]
    return float(np.mean(hits))


@pytest.mark.parametrize(("k", "counts"), [(1, (9, 12)), (3, (40, 25))])
def test_every_ball_by_itself(k: int, counts: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generative_metrics, "ROWS", 7)
    made, real = drawn(0, counts[0], 1.5), drawn(1, counts[1])
    assert precision_recall(made, real, k) == (by_hand(made, real, k), by_hand(real, made, k))


def test_a_set_that_repeats_one_sample_has_full_precision_and_low_recall() -> None:
    real = drawn(1, 60)
    precision, recall = precision_recall(real[:1] + drawn(0, 60, 1e-3), real)
    assert precision == 1.0 and recall < 0.1


def test_too_few_rows_and_other_lengths_are_refused() -> None:
    for made in (drawn(0, 3), drawn(0, 9)[:, :2]):
        with pytest.raises(ValueError, match="more than 3 rows, got"):
            precision_recall(made, drawn(1, 9))


def test_the_inception_score_of_known_distributions() -> None:
    sure = np.eye(4)[np.arange(20) % 4]
    assert inception_score(sure, 1) == (pytest.approx(4.0), 0.0)
    assert inception_score(np.full((20, 4), 0.25), 5) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-12))
    assert inception_score(sure, 20)[0] == pytest.approx(1.0)  # a part of one image each
    unsure = np.random.default_rng(0).dirichlet(np.ones(4), 50)
    share = unsure.mean(0)
    expected = np.exp((unsure * (np.log(unsure) - np.log(share))).sum(1).mean())
    assert inception_score(unsure, 1)[0] == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match="add up to 1"):
        inception_score(np.ones((3, 2)))


def test_clip_scores_are_cosines_that_do_not_go_below_zero() -> None:
    images, texts = np.array([[2.0, 0], [1, 1], [-3, 0], [0, 0]]), np.array([[5.0, 0], [0, 2], [1, 0], [1, 0]])
    assert clip_scores(images, texts) == pytest.approx([100, 100 / np.sqrt(2), 0, 0])
