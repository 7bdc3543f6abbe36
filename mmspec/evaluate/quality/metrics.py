"""Metrics of torchmetrics over features that our extractors have computed, in float64."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Features = np.ndarray


class _Given(nn.Module):
    """The extractor of a metric that is given features."""

    def __init__(self, width: int):
        super().__init__()
        self.num_features = width

    def forward(self, rows: Tensor) -> Tensor:
        return rows


def need_torchmetrics() -> None:
    """Refuse to measure distances without the extra that brings torchmetrics. It takes seconds to import."""
    if not has_torchmetrics():
        raise ValueError('quality: expected torchmetrics, got none; pip install "mmspec[eval]"')


def has_torchmetrics() -> bool:
    return find_spec("torchmetrics") is not None


def metric(module: str, name: str, width: int, **how: Any) -> Any:
    """Return a metric of torchmetrics.image for features of a width."""
    need_torchmetrics()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that all features are kept
        built = getattr(import_module(f"torchmetrics.image.{module}"), name)(feature=_Given(width), **how)
    return built.set_dtype(torch.float64)


def updated(module: str, name: str, real: Features, generated: Features, **how: Any) -> Any:
    """Return a metric that has seen both sets."""
    built = metric(module, name, real.shape[1], **how)
    built.update(torch.from_numpy(real), real=True)
    built.update(torch.from_numpy(generated), real=False)
    return built


def computed(built: Any) -> tuple[float, float]:
    """Return mean and deviation of a metric that draws, with a fixed seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a single part has no deviation
        torch.manual_seed(0)
        mean, deviation = built.compute()
    return float(mean), float(deviation)


def checked_sets(*sets: Features) -> tuple[Features, ...]:
    """Return feature sets [N, d] of one width as float64."""
    rows = tuple(np.asarray(features, dtype=np.float64) for features in sets)
    if any(each.ndim != 2 or len(each) < 2 or each.shape[1:] != rows[0].shape[1:] for each in rows):
        shapes = " and ".join(str(each.shape) for each in rows)
        raise ValueError(f"features: expected sets [N, d] of one width with N >= 2, got {shapes}; make more images")
    if not all(np.isfinite(each).all() for each in rows):
        raise ValueError("features: expected finite numbers, got NaN or Inf; look at the images they are from")
    return rows
