"""Conversion of published ImageReward state dicts to the module in this package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.video.rewards.imagereward import MLP, TEXT, VISION, ImageReward, ImageRewardConfig, mlp_layers
from mmspec.video.rewards.state_dicts import filled, named, weights_of

_POSITIONS = TEXT + "embeddings.position_ids"  # an arange, not learned
_VISION_NAMES = [
    (re.compile(pattern), into)
    for pattern, into in (
        (r"^embeddings\.class_embedding$", "cls_token"),
        (r"^embeddings\.position_embedding$", "pos_embed"),
        (r"^embeddings\.patch_embedding\.", "patch_embed.proj."),
        (r"^encoder\.layers\.(\d+)\.", r"blocks.\1."),
        (r"\.layer_norm([12])\.", r".norm\1."),
        (r"\.self_attn\.qkv\.", ".attn.qkv."),
        (r"\.self_attn\.projection\.", ".attn.proj."),
        (r"^post_layernorm\.", "norm."),
    )
]


def imagereward_from_state_dict(
    sd: Mapping[str, Any] | str | Path, config: Mapping[str, Any] | None = None
) -> ImageReward:
    """Load a published ImageReward checkpoint, in eval mode, in the checkpoint's dtype; the head is float32.

    Every weight that affects a score must be present, and the towers must have no others. Other parts of the file
    (projections of the pretraining, position ids) are ignored.

    Args:
        sd: Tensors of any size under the published names, raw or wrapped; or a .safetensors file.
        config: Published field names, those of med_config.json or of both towers under "vision" and "text". Fields
            that follow from the weights may be left out. The number of heads follows only for published widths.

    Raises:
        ValueError: Tensors are missing, unknown or misshapen, or a field does not fit.
    """
    weights = weights_of(sd)
    with named(sd):
        names = [name for name in weights if name.startswith((VISION, TEXT, MLP)) and name != _POSITIONS]
        weights = {name: weights[name] for name in names}
        sizes = ImageRewardConfig.of(config, weights)
        head = folded(weights, sizes.mlp, sizes.text.hidden_size)
        towers = {name: value for name, value in weights.items() if not name.startswith(MLP)}
        return filled(lambda: ImageReward(sizes), {**towers, **head}, published_name, kept=head)


def published_name(name: str) -> str:
    """Names of the head are unchanged."""
    part, _, rest = name.partition(".")
    if part != "vision":
        return TEXT + rest if part == "text" else name
    for pattern, into in _VISION_NAMES:
        rest = pattern.sub(into, rest)
    return VISION + rest


def folded(weights: Mapping[str, Tensor], widths: tuple[int, ...], hidden: int) -> dict[str, Tensor]:
    """Return {"head.weight": [1, hidden], "head.bias": [1]}, float32: the product of the layers after the towers."""
    layers = mlp_layers(weights)
    names = [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    shapes = [shape for wide, narrow in zip(widths, widths[1:], strict=False) for shape in ((narrow, wide), (narrow,))]
    stray = sorted({name for name in weights if name.startswith(MLP)} ^ set(names))
    actual = [] if stray else [tuple(weights[name].shape) for name in names]
    if stray or actual != shapes or (widths[0], widths[-1]) != (hidden, 1):
        got = f"missing or unknown {', '.join(stray[:4])}" if stray else f"shapes {actual[::2]}"
        raise ValueError(
            f"sd: expected linear layers under {MLP}N of widths {hidden} to 1 ({widths} in the config), got "
            f"{got}; pass the whole state dict"
        )
    product = bias = None
    for layer in layers:
        weight, shift = weights[f"{layer}.weight"].detach().double(), weights[f"{layer}.bias"].detach().double()
        product = weight if product is None else weight @ product
        bias = shift if bias is None else weight @ bias + shift
    return {"head.weight": product.to(torch.float32), "head.bias": bias.to(torch.float32)}
