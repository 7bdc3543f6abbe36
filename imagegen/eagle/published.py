"""LANTERN's drafters for LlamaGen under the names of its public code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmspec.core.drafting.published import EMBEDDING, feature_fields, fill, layer_names
from mmspec.imagegen.eagle.drafter import ImageEagle, ImageEagleConfig

# values of the images behind each `input_type`
POSITIONS = {"c2i": 576, "t2i": 256, "t2i2": 1024}
_ATTENTION = "layers.0.self_attn."


def drafter_from_state_dict(
    sd: Mapping[str, Tensor], config: Mapping[str, Any], target: object | None = None
) -> ImageEagle:
    """The drafter a published checkpoint holds, in float32 and eval mode.

    sd: tensors under the published names, of any size.   config: fields of the published config; `input_type` says which
    resolution it was trained for ("c2i" 576 values, "t2i" 256, "t2i2" 1024), without one it drafts for any.
    target: the pipeline or model it will draft for; sizes are then checked now, and it takes the model's device and dtype.
    The published layer turns adjacent channels, ours the two halves of a head: rows of queries and keys are reordered, which
    changes no attention. The rotary base is 10000 whatever the config says, as in the public class. The embedding is kept:
    for some targets the public code filled it from lm_head, so it may not be the target's own.
    Raises ValueError for missing or unknown keys (all of them listed), shapes that do not fit the config, and a drafter that
    does not fit the target.
    """
    found = feature_fields(config) | {"rope_theta": 10000.0}
    kind = config.get("input_type")
    if kind is not None and kind not in POSITIONS:
        raise ValueError(
            f"input_type: expected one of {', '.join(POSITIONS)}, got {kind!r}; give the drafter's own config"
        )
    wanted = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_key_value_heads", "rope_theta",
              "rms_norm_eps", "bias")  # fmt: skip
    sizes = ImageEagleConfig(
        **{name: found[name] for name in wanted}, positions=POSITIONS.get(kind, 0), embedding="own"
    )
    drafter = fill(ImageEagle(sizes), _reordered(sd, sizes, to_halves=True), _names(sizes), unused=())
    drafter = drafter.eval().requires_grad_(False)
    return drafter if target is None else drafter.fitted(target)


def published_state_dict(drafter: ImageEagle) -> dict[str, Tensor]:
    """The drafter's tensors under the published names, as `drafter_from_state_dict` reads them.

    Raises ValueError for a drafter without an embedding of its own, which the published layout has.
    """
    if drafter.embedding is None:
        raise ValueError("drafter: expected one with embedding='own', got one that reads through its target's; store the "
                         "target's embedding in it first")  # fmt: skip
    own, state = drafter.state_dict(), {}
    layer = drafter.config.layer()
    for name, group in _names(drafter.config).items():
        rows = own[name]
        sizes = [len(rows) // len(group)] * len(group)
        if name == "layer.qkv.weight":
            sizes = [count * layer.dim for count in (layer.num_attention_heads, layer.groups, layer.groups)]
        state |= {key: part.clone() for key, part in zip(group, rows.split(sizes), strict=True)}
    return _reordered(state, drafter.config, to_halves=False)


def _names(config: ImageEagleConfig) -> dict[str, tuple[str, ...]]:
    names = {**layer_names("layers.0."), "fc.weight": ("fc.weight",), "embedding.weight": (EMBEDDING,)}
    return names | ({"fc.bias": ("fc.bias",)} if config.bias else {})


def _reordered(state: Mapping[str, Tensor], config: ImageEagleConfig, to_halves: bool) -> dict[str, Tensor]:
    """Rows of queries and keys between adjacent pairs and halves; rows of a wrong number are left to be complained about."""
    dim, moved = config.layer().dim, dict(state)
    order = torch.arange(dim).view(2, -1).T if not to_halves else torch.arange(dim).view(-1, 2).T
    for name in (f"{_ATTENTION}q_proj.weight", f"{_ATTENTION}k_proj.weight"):
        weight = moved.get(name)
        if weight is not None and weight.dim() == 2 and weight.shape[0] % dim == 0:
            moved[name] = weight.unflatten(0, (-1, dim))[:, order.flatten()].flatten(0, 1)
    return moved
