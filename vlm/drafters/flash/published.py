"""FLASH drafters under the names of its public code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.drafting.published import EMBEDDING, ONE_AXIS, feature_fields, fill, layer_names
from mmspec.vlm.drafters.flash import Flash, FlashConfig

PREFIX, FREQUENCIES = "layers.", "rotary_emb.inv_freq"
_HEAD = {
    "layer.qkv": ("q_proj", "k_proj", "v_proj"),
    "layer.out": ("o_proj",),
    "layer.up": ("ar_proj.0",),
    "layer.down": ("ar_proj.2",),
}


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Flash:
    """The autoregressive drafter (a Llama layer "layers.0." and fc) or, where "ar_proj" is among the names, the
    semi-autoregressive one (its head under "layers." or by itself, fc, A).

    config: as published, with "k" (5 where absent). The query matrix A says how many latents; without one nothing is
    pooled. A head without fc is given one that passes the target's state on. The rotary base is 10000 and queries, keys and
    values of the Llama layer have no bias whatever the config says, as in the public classes. The saved rotary frequencies
    and the embedding are not read.
    """
    fields = feature_fields(config, ONE_AXIS) | {"rope_theta": 10000.0, "qkv_bias": False}
    state = dict(state)
    width = fields["hidden_size"]
    fields["latents"] = state["A"].shape[0] if "A" in state else 0
    if any("ar_proj." in name for name in state):
        state = {name.removeprefix(PREFIX): value for name, value in state.items()}
        fields |= {"intermediate_size": 4 * width, "num_key_value_heads": 0, "block": config.get("k", 5)}
        names = {f"{own}.{x}": tuple(f"{name}.{x}" for name in group) for own, group in _HEAD.items()
                 for x in ("weight", "bias")}  # fmt: skip
        if "fc.weight" not in state:
            state["fc.weight"] = torch.cat([torch.zeros(width, width), torch.eye(width)], 1)
            state["fc.bias"] = torch.zeros(width)
            fields["bias"] = True
    else:
        fields |= {"head": "ar", "block": 1}
        names = layer_names("layers.0.")
    names["fc.weight"] = ("fc.weight",)
    if fields["bias"]:
        names["fc.bias"] = ("fc.bias",)
    if fields["latents"]:
        names["pool.latents"] = ("A",)
    return fill(Flash(FlashConfig(**fields)), state, names, (EMBEDDING, FREQUENCIES))
