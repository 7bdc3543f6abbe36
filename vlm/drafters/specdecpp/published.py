"""Acceptance heads as SpecDec++ publishes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import fill
from mmspec.vlm.drafters.specdecpp.drafter import AcceptanceConfig, AcceptanceHead


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> AcceptanceHead:
    """config: hidden_size and num_layers. The file holds one block num_layers times; each copy becomes a block of ours."""
    missing = [name for name in ("hidden_size", "num_layers") if name not in config]
    if missing:
        raise ValueError(f"config: expected the fields hidden_size and num_layers, got none for {', '.join(missing)}")
    layers = config["num_layers"]
    names = {f"judge.{x}": (f"model.{layers}.{x}",) for x in ("weight", "bias")}
    for layer in range(layers):
        names |= {f"blocks.{layer}.{x}": (f"model.{layer}.linear.{x}",) for x in ("weight", "bias")}
    return fill(AcceptanceHead(AcceptanceConfig(config["hidden_size"], layers)), state, names, unused=())
