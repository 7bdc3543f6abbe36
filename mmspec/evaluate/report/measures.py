"""Quality of a cell's output: figures of single samples, and distances of pictures from real pictures, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.evaluate.engine.records import decode_row
from mmspec.evaluate.engine.statistics import interval
from mmspec.evaluate.quality.frechet import frechet, frechet_interval
from mmspec.evaluate.quality.generative_metrics import (
    NEIGHBOUR,
    SPLITS,
    inception_score,
    kernel_distance,
    precision_recall,
)

# the longest features whose Frechet distance is resampled: a root of larger matrices takes seconds each
RESAMPLED_WIDTH = 512


@dataclass(frozen=True, slots=True)
class Measure:
    title: str  # of its column and axis
    better: str  # "higher" or "lower"


MEASURES: dict[str, Measure] = {
    "frechet": Measure("Fréchet distance", "lower"),
    "kernel": Measure("kernel distance (KID)", "lower"),
    "inception_score": Measure("Inception Score", "higher"),
    "precision": Measure("precision", "higher"),
    "recall": Measure("recall", "higher"),
    "clip_score": Measure("CLIP score", "higher"),
    "objects_drawn": Measure("objects drawn right", "higher"),
    "objects_right": Measure("objects named right", "higher"),
    "answer_right": Measure("answers right", "higher"),
    "reward": Measure("reward", "higher"),
    "truth": Measure("truth of motion", "higher"),
}
# the measures that plots show, as far as they were taken
PLOTTED = ("objects_right", "answer_right", "frechet", "kernel", "truth", "reward", "clip_score")


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    value: float  # over all samples
    interval: tuple[float, float] | None  # the 90 % bootstrap interval, None with too few samples
    count: int  # of samples


def figures(entries: Mapping[str, Sequence[Mapping]]) -> dict[str, MeasuredValue]:
    """Return the means of the figures of single samples by prompt; prompts are resampled with all their samples."""
    names = dict.fromkeys(name for group in entries.values() for entry in group for name in entry["figures"])
    values_by_name = {}
    for name in names:
        groups = [
            [entry["figures"][name] for entry in group if entry["figures"].get(name) is not None]
            for group in entries.values()
        ]
        groups = [group for group in groups if group]
        if groups:
            values = np.concatenate(groups)
            ends = interval(groups, lambda rows: float(rows.mean()))
            values_by_name[name] = MeasuredValue(
                float(values.mean()), None if ends is None else (ends[0], ends[1]), len(values)
            )
    return values_by_name


def features(entries: Sequence[Mapping], name: str = "features") -> np.ndarray | None:
    """Return float32 [N, d] of the entries with features; None without any."""
    rows = [decode_row(entry[name]) for entry in entries if entry.get(name) is not None]
    return np.stack(rows) if rows else None


def distances(generated: np.ndarray, real: np.ndarray | None, odds: np.ndarray | None) -> dict[str, MeasuredValue]:
    """Return the measures of all pictures together, from generated features [N, d], real features [M, d], and class
    probabilities [N, K] of generated pictures, all float32."""
    count, values = len(generated), {}
    if odds is not None:
        score, _ = inception_score(odds, SPLITS if count >= 10 * SPLITS else 1)
        values["inception_score"] = MeasuredValue(score, None, count)
    if real is None or min(count, len(real)) < 2:
        return values
    value = frechet(generated, real)
    ends = frechet_interval(generated, real) if generated.shape[1] <= RESAMPLED_WIDTH else None
    values["frechet"] = MeasuredValue(value, ends, count)
    values["kernel"] = MeasuredValue(kernel_distance(generated, real)[0], None, count)
    if min(count, len(real)) > NEIGHBOUR:
        precision, recall = precision_recall(generated, real)
        values |= {"precision": MeasuredValue(precision, None, count), "recall": MeasuredValue(recall, None, count)}
    return values


def quality_fields(values: Mapping[str, MeasuredValue]) -> dict[str, object]:
    """Return the row fields NAME and NAME_interval of values."""
    row: dict[str, object] = {}
    for name, measured in values.items():
        ends = measured.interval
        row[name] = float(f"{measured.value:.6g}")
        row[f"{name}_interval"] = None if ends is None else [float(f"{end:.6g}") for end in ends]
    return row
