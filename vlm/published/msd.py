"""MSD drafters as their authors publish them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import feature_fields, fill, layer_names
from mmspec.vlm.drafters.feature_drafter import FeatureConfig
from mmspec.vlm.drafters.msd import Msd


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Msd:
    """The layer of a Qwen2-VL drafter norms its input and has biased queries, keys and values, which no field of its config
    says; the LLaVA one has neither. The public code tells them apart by the target's path, here `model_type` does.

    Its M-RoPE sections are not needed: the public code gives all three axes the same positions.
    """
    fields = feature_fields(config)
    qwen = str(config.get("model_type", "")).startswith("qwen2")
    fields = {**fields, "qkv_bias": config.get("qkv_bias", qwen), "input_norm": qwen}
    names = {**layer_names("layers.0.", fields["qkv_bias"]), "fc.weight": ("fc.weight",)}
    if fields["bias"]:
        names["fc.bias"] = ("fc.bias",)
    if qwen:
        names["norm.weight"] = ("layers.0.input_layernorm.weight",)
    return fill(Msd(FeatureConfig(**fields)), state, names)
