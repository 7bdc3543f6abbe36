"""Loading image drafters from a folder or a hub id, and LANTERN's published weights under the names of its public code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.imagegen.eagle.image_eagle import ImageEagle, ImageEagleConfig
from mmspec.io.pretrained import EMBEDDING, drafter_sizes, fill_drafter, folder_of, layer_names


def load_drafter(path_or_repo: str | Path, target: object | None = None) -> ImageEagle:
    """Load the drafter of a folder, or of a hub repository named by its id (the only case that uses the network).

    Args:
        path_or_repo: The folder or the hub id.
        target: The pipeline or model to draft for. With it, sizes are checked now instead of at the first request, and
            the drafter moves to the model's device and dtype.

    Raises:
        ValueError: The folder holds no drafter, or the drafter does not fit the target.
    """
    drafter = ImageEagle.from_pretrained(folder_of(path_or_repo))
    return drafter if target is None else drafter.fitted(target)


# number of image values of each `input_type`
POSITIONS = {"c2i": 576, "t2i": 256, "t2i2": 1024}
_ATTENTION = "layers.0.self_attn."


def drafter_from_state_dict(
    sd: Mapping[str, Tensor], config: Mapping[str, Any], target: object | None = None
) -> ImageEagle:
    """Load the drafter of a published checkpoint, in float32 and eval mode.

    The published layer turns adjacent channels, ours the two halves of a head, so rows of queries and keys are
    reordered; attention does not change. The rotary base is 10000 whatever the config, as in the public class. The
    checkpoint's embedding is used: for some targets the public code filled it from lm_head, so it may differ from the
    target's.

    Args:
        sd: Tensors under the published names, of any size.
        config: Fields of the published config. `input_type` is the resolution of the training ("c2i" 576 values, "t2i"
            256, "t2i2" 1024); without it the drafter supports any.
        target: The pipeline or model to draft for. With it, sizes are checked now, and the drafter moves to the model's
            device and dtype.

    Raises:
        ValueError: Keys are missing or unknown (all are listed), shapes do not fit the config, or the drafter does not
            fit the target.
    """
    fields = drafter_sizes(config) | {"rope_theta": 10000.0}
    kind = config.get("input_type")
    if kind is not None and kind not in POSITIONS:
        raise ValueError(
            f"input_type: expected one of {', '.join(POSITIONS)}, got {kind!r}; give the drafter's own config"
        )
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_key_value_heads", "rope_theta",
             "rms_norm_eps", "bias")  # fmt: skip
    sizes = ImageEagleConfig(
        **{name: fields[name] for name in names}, positions=POSITIONS.get(kind, 0), embedding="own"
    )
    drafter = fill_drafter(ImageEagle(sizes), _in_halves(sd, sizes), _names(sizes), unused=())
    drafter = drafter.eval().requires_grad_(False)
    return drafter if target is None else drafter.fitted(target)


def _names(config: ImageEagleConfig) -> dict[str, tuple[str, ...]]:
    names = {**layer_names("layers.0."), "fc.weight": ("fc.weight",), "embedding.weight": (EMBEDDING,)}
    return names | ({"fc.bias": ("fc.bias",)} if config.bias else {})


def _in_halves(state: Mapping[str, Tensor], config: ImageEagleConfig) -> dict[str, Tensor]:
    """Reorder the rows of queries and keys from adjacent pairs to halves; a wrong number of rows is reported later."""
    dim, moved = config.layer().dim, dict(state)
    order = torch.arange(dim).view(-1, 2).T
    for name in (f"{_ATTENTION}q_proj.weight", f"{_ATTENTION}k_proj.weight"):
        weight = moved.get(name)
        if weight is not None and weight.dim() == 2 and weight.shape[0] % dim == 0:
            moved[name] = weight.unflatten(0, (-1, dim))[:, order.flatten()].flatten(0, 1)
    return moved
