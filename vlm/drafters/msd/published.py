"""MSD drafters as their authors publish them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import ONE_AXIS, feature_fields, fill, layer_names
from mmspec.vlm.drafters.feature_drafter import FeatureConfig
from mmspec.vlm.drafters.msd import Msd

_NORM = "layers.0.input_layernorm.weight"


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Msd:
    """The layer of a Qwen2-VL drafter norms its input and has biased queries, keys and values, which no field of its config
    says; the LLaVA one has neither. The public code tells them apart by the target's path. Here `model_type` of the config
    does, where there is none that of the target, and without either the file itself, which holds the norm or does not.

    Its M-RoPE sections are not needed: the public code gives all three axes the same positions.
    Raises ValueError also where the file contradicts `model_type`.
    """
    fields = feature_fields(config, ONE_AXIS)
    told = config.get("model_type") or (None if target is None else target.config.model_type)
    qwen = _NORM in state if told is None else str(told).startswith("qwen2")
    fields = {**fields, "qkv_bias": config.get("qkv_bias", qwen), "input_norm": qwen}
    names = {**layer_names("layers.0.", fields["qkv_bias"]), "fc.weight": ("fc.weight",)}
    if fields["bias"]:
        names["fc.bias"] = ("fc.bias",)
    if qwen:
        names["norm.weight"] = (_NORM,)
    try:
        return fill(Msd(FeatureConfig(**fields)), state, names)
    except ValueError as error:
        if qwen == (_NORM in state):
            raise
        raise ValueError(f"{error}; model_type decides about {_NORM} and the biases, and is {told!r}: give the config the "
                         "file was made with") from error  # fmt: skip
