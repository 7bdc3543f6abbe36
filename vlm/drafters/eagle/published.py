"""EAGLE-1/2 drafters as SafeAILab publishes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import feature_fields, fill, layer_names
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Eagle:
    """fc has a bias unless the config says otherwise; the file's embedding is the target's own and is not kept."""
    fields = feature_fields(config)
    names = {**layer_names("layers.0.", fields["qkv_bias"]), "fc.weight": ("fc.weight",)}
    if fields["bias"]:
        names["fc.bias"] = ("fc.bias",)
    return fill(Eagle(EagleConfig(**fields)), state, names)
