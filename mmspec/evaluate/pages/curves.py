"""Curves of training logs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mmspec.core.readers import read_text
from mmspec.evaluate.pages.plots import ACCEPT_LENGTH, Line, Panel


def training_curve(file: Path, y: str = "accept_length") -> Line:
    """(steps, values) of the lines of a training log that hold `y`.   Raises ValueError for a file without any."""
    pairs = []
    for number, line in enumerate(read_text(file).splitlines(), 1):
        try:
            record = json.loads(line)
            if y in record:
                pairs.append((int(record["step"]), float(record[y])))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: expected a JSON object with a step, got {line[:60]!r}") from error
    if not pairs:
        raise ValueError(f"{file}: expected lines with {y!r}, got none; train with held-out requests")
    steps, values = zip(*pairs, strict=True)
    return steps, values


def training_panels(logs: Mapping[str, Path]) -> list[Panel]:
    """Accept length against training steps, one line per log."""
    lines = {name: training_curve(file) for name, file in logs.items()}
    return [Panel("accept length on held-out requests while training", "training steps", ACCEPT_LENGTH, lines)]
