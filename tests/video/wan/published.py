"""Published Wan state dicts: their keys and shapes at full size, under both kinds of names."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

_FILE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
NAMES: dict[str, str] = _FILE["names"]  # the causal checkpoints' name -> diffusers'
SIZES: dict[str, dict] = {name: entry for name, entry in _FILE.items() if name != "names"}


def shapes(size: str, kind: str) -> dict[str, list[int]]:
    """Shapes of all keys. kind: "causal" or "diffusers"."""
    entry = SIZES[size]
    return {name: shape for key, shape in entry[kind]["keys"].items() for name in numbered(key, entry["layers"])}


def numbered(key: str, layers: int) -> list[str]:
    return [key.replace("{i}", str(number)) for number in range(layers)] if "{i}" in key else [key]


def to_causal(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' tensors under the causal checkpoints' names; unknown names pass unchanged."""
    most = max(entry["layers"] for entry in SIZES.values())
    pairs = [zip(numbered(new, most), numbered(old, most), strict=True) for old, new in NAMES.items()]
    names = {new: old for each in pairs for new, old in each}
    return {names.get(name, name): value for name, value in state.items()}
