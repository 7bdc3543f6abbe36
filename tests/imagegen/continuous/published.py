"""State dicts under the published names: their keys and shapes at full size."""

from __future__ import annotations

import json
from pathlib import Path

_FILE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
TRANSFORMERS, AUTOENCODER = _FILE["transformers"], _FILE["autoencoder"]


def expanded(keys: dict[str, list[int]], counts: dict[str, int]) -> dict[str, list[int]]:
    """Shapes of all keys, those with an {i} once for each of its count."""
    shapes = {}
    for key, shape in keys.items():
        for number in range(next((count for prefix, count in counts.items() if key.startswith(prefix)), 1)):
            shapes[key.replace("{i}", str(number))] = shape
    return shapes


def transformer_shapes(name: str) -> dict[str, list[int]]:
    entry = TRANSFORMERS[name]
    return expanded(entry["keys"], entry["layer_counts"])


def autoencoder_shapes() -> dict[str, list[int]]:
    return expanded(AUTOENCODER["keys"], AUTOENCODER["layer_counts"])
