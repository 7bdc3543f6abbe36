"""State dicts under the published names: their keys and shapes at full size, and small models of the same layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

_FILE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
TRANSFORMERS, TOKENIZERS = _FILE["transformers"], _FILE["tokenizers"]


def transformer_shapes(name: str) -> dict[str, list[int]]:
    entry = TRANSFORMERS[name]
    layers = entry["config"].get("n_layer") or entry["config"]["num_hidden_layers"]
    each = {f"{entry['prefix']}{i}.{key}": shape for i in range(layers) for key, shape in entry["each"].items()}
    return {**entry["top"], **each}


def tokenizer_shapes(name: str) -> dict[str, list[int]]:
    shapes = {"quantize.codebook_used": [65536]}
    for shape, modules in TOKENIZERS[name]["modules"]:
        for module in modules.split():
            shapes[f"{module}.weight"] = shape
            if module != "quantize.embedding":
                shapes[f"{module}.bias"] = shape[:1]
    return shapes


def weights(shapes: dict[str, list[int]], device: str = "cpu") -> dict[str, Tensor]:
    """Random tensors, small enough that deep stacks stay finite."""
    if device == "meta":
        return {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    generator = torch.Generator().manual_seed(0)
    return {key: torch.randn(shape, generator=generator).mul_(0.02) for key, shape in shapes.items()}
