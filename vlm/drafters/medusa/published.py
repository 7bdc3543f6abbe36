"""Medusa heads as FasterDecoding publishes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import fill
from mmspec.vlm.drafters.heads import HeadConfig
from mmspec.vlm.drafters.medusa import Medusa

_TARGETS = ("model.", "lm_head.")


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Medusa:
    """medusa_num_heads and medusa_num_layers are read from the config, widths from the tensors, as the published config has
    none. Names start with "medusa_head." in files of the whole model, whose other tensors are the target's own and are not
    kept, and with the number of the head in files of the heads alone.
    """
    needed = ("medusa_num_heads", "medusa_num_layers")
    missing = [name for name in needed if name not in config]
    if missing:
        raise ValueError(f"config: expected the fields {', '.join(needed)}, got none for {', '.join(missing)}")
    heads, layers = (config[name] for name in needed)
    prefix = "medusa_head." if any(name.startswith("medusa_head.") for name in state) else ""
    last = f"{prefix}0.{layers}.weight"
    if last not in state:
        raise ValueError(f"sd: expected the published keys; missing {last!r}, got {sorted(state)[:8]}")
    vocab, width = state[last].shape
    names = {}
    for head in range(heads):
        names[f"heads.{head}.weight"] = (f"{prefix}{head}.{layers}.weight",)
        for layer in range(layers):
            for part in ("weight", "bias"):
                names[f"blocks.{head}.{layer}.linear.{part}"] = (f"{prefix}{head}.{layer}.linear.{part}",)
    drafter = Medusa(HeadConfig(hidden_size=width, vocab_size=vocab, heads=heads, layers=layers))
    return fill(drafter, state, names, unused=[name for name in state if name.startswith(_TARGETS)])
