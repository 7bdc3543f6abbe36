"""Frechet and kernel distances and the Inception Score are those of torchmetrics, on features of any law."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from mmspec.evaluate.quality.frechet import frechet
from mmspec.evaluate.quality.generative_metrics import inception_score, kernel_distance

WIDTH = 12
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # that all features are kept
LAWS = {"normal": (0.0, 1.0), "far": (40.0, 0.3), "wide": (-2.0, 25.0)}


class Rows(nn.Module):
    """Hands features on as they are: torchmetrics' own network is not what is compared."""

    num_features = WIDTH

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.double()


def features(law: str, seed: int, count: int = 200) -> np.ndarray:
    mean, scale = LAWS[law]
    drawn = np.random.default_rng(seed).normal(mean, scale, (count, WIDTH))
    return (drawn @ np.random.default_rng(7).normal(size=(WIDTH, WIDTH))).astype(np.float32)


def reference(name: str) -> ModuleType:
    """A module of torchmetrics, which takes a second to import: where a test runs, not where tests are collected."""
    return pytest.importorskip(f"torchmetrics.image.{name}", reason='torchmetrics comes with "mmspec[eval]"')


def told(metric: object, first: np.ndarray, second: np.ndarray) -> object:
    metric.update(torch.from_numpy(first), real=True)
    metric.update(torch.from_numpy(second), real=False)
    return metric.compute()


@pytest.mark.parametrize("law", LAWS)
def test_the_frechet_distance(law: str) -> None:
    first, second = features(law, 0), features(law, 1) * 1.1
    metric = reference("fid").FrechetInceptionDistance(feature=Rows(), normalize=True)
    metric.set_dtype(torch.float64)
    assert frechet(first, second) == pytest.approx(float(told(metric, first, second)), rel=1e-4)


@pytest.mark.parametrize("law", LAWS)
def test_the_kernel_distance(law: str) -> None:
    first, second = features(law, 0), features(law, 1) * 1.1
    metric = reference("kid").KernelInceptionDistance(feature=Rows(), subsets=1, subset_size=200, normalize=True)
    mean, _ = told(metric, first, second)
    assert kernel_distance(first, second, resamples=0).value == pytest.approx(float(mean), rel=1e-4)


@pytest.mark.parametrize("splits", [1, 7, 10])
def test_the_inception_score_in_the_same_order(splits: int) -> None:
    logits = torch.from_numpy(features("normal", 3))
    metric = reference("inception").InceptionScore(feature=Rows(), splits=splits)
    metric.update(logits)
    torch.manual_seed(5)
    mean, deviation = metric.compute()
    torch.manual_seed(5)
    shuffled = logits.double()[torch.randperm(len(logits))]
    own = inception_score(shuffled.softmax(1).numpy(), splits)
    assert own[0] == pytest.approx(float(mean), rel=1e-4)
    if splits > 1:
        assert own[1] == pytest.approx(float(deviation), rel=1e-4)
