"""The Frechet distance between feature sets by torchmetrics, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mmspec.evaluate.quality.metrics import Features, checked_sets, updated

RESAMPLES = 200


def frechet(a: Features, b: Features) -> float:
    """Return the Frechet distance in float64 between Gaussians with the moments of feature sets [N, d] and [M, d] ("GANs
    Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium"). It falls with N even between samples
    of the same distribution."""
    a, b = checked_sets(a, b)
    # rounding can make the distance of equal sets negative
    return max(float(updated("fid", "FrechetInceptionDistance", a, b, normalize=True).compute()), 0.0)


@dataclass(frozen=True, slots=True)
class Distances:
    """Frechet distances of a method's images from plain decoding's; the intervals are 90 % bootstrap intervals."""

    frechet: float  # the mean distance to the two halves of plain images
    own: float  # the distance between those halves, the reference
    ratio: float  # frechet / own; 1 on average for an exact method
    frechet_interval: tuple[float, float]
    ratio_interval: tuple[float, float]


def distances(
    method: Features, halves: tuple[Features, Features], resamples: int = RESAMPLES, seed: int = 0
) -> Distances:
    """Return the distances of a method's images, float [N, d], from two halves of plain images of the same N, with
    other seeds; all sets are resampled together. Resampled sets hold repeats, which raises every distance between them.
    The interval is therefore the spread of the resampled values around their mean, shifted to the measured value."""
    sets = checked_sets(method, *halves)
    if len({len(rows) for rows in sets}) > 1:
        shapes = " and ".join(str(rows.shape) for rows in sets)
        raise ValueError(f"features: expected sets [N, d] of one shape, got {shapes}; cut them to equal N")
    frechets, owns = [], []
    for picked in _resampled(sets, resamples, seed):
        to_halves, own = _pair(picked)
        frechets.append(to_halves)
        owns.append(own)
    value, own = _pair(sets)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.array(frechets) / np.array(owns)
    ratio = value / own if own else np.nan
    return Distances(value, own, ratio, _around(value, np.array(frechets)), _around(ratio, ratios))


def frechet_interval(a: Features, b: Features, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """Return the 90 % bootstrap interval of `frechet`, both sets resampled, shifted as in `distances`."""
    return _around(frechet(a, b), np.array([frechet(*picked) for picked in _resampled((a, b), resamples, seed)]))


def _pair(sets: tuple[Features, ...]) -> tuple[float, float]:
    method, first, second = sets
    return (frechet(method, first) + frechet(method, second)) / 2, frechet(first, second)


def _resampled(sets: tuple[Features, ...], count: int, seed: int) -> Iterator[tuple[Features, ...]]:
    drawn = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(features[drawn.integers(len(features), size=len(features))] for features in sets)


def _around(value: float, values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values - values.mean(), [5, 95])
    return float(value + low), float(value + high)
