from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.imagegen.components import read_weights, write_component
from mmspec.imagegen.continuous.kl import kl_from_state_dict, write_kl
from mmspec.imagegen.continuous.mar.mar_config import LEFT_OUT, SIZES, MARConfig
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.llamagen.published import unwrap
from mmspec.io.loading import count_modules, fill_from_state_dict, sketch, unpickle
from mmspec.io.readers import naming
from mmspec.io.validation import check_types

# the average of the weights comes first, because it drew the published samples
WRAPPERS = ("model_ema", "model", "module", "state_dict")


def mar_from_state_dict(sd: Mapping[str, Any] | str | Path, config: MARConfig | Mapping[str, Any] | None = None) -> MAR:
    """Load the model of a published checkpoint in eval mode, in the checkpoint's dtype.

    Args:
        sd: Tensors under the published names, raw or wrapped as in the published .pth (`model_ema` before `model`), of
            any size; or a .safetensors file. They become the weights without a copy, so meta tensors give a model on
            the meta device.
        config: Published field names; fields that follow from the weights may be left out. The numbers of heads are
            known for the published sizes and needed for others. The image size is that of 16 pixels per token and side
            by default.

    Raises:
        ValueError: Tensors are missing, unknown or misshapen, or a field has a wrong type.
    """
    weights, _ = unwrap(sd if isinstance(sd, Mapping) else read_weights(sd, "mar"), WRAPPERS)
    with nullcontext() if isinstance(sd, Mapping) else naming(sd):
        fields = config.to_dict() if isinstance(config, MARConfig) else dict(config or {})
        sizes = MARConfig.of(_fields(weights, {k: v for k, v in fields.items() if k not in LEFT_OUT}))
        return fill_from_state_dict(sketch(lambda: MAR(sizes), len(weights), "config"), weights)


def _fields(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
    check_types(MARConfig, config)
    implied: dict[str, Any] = {}
    for name, key, axis in (
        ("encoder_embed_dim", "z_proj.weight", 0),
        ("decoder_embed_dim", "decoder_embed.weight", 0),
        ("class_num", "class_emb.weight", 0),
        ("diffloss_w", "diffloss.net.input_proj.weight", 0),
        ("caption_dim", "caption_proj.fc1.weight", 1),
    ):
        if _size(weights, key, axis):
            implied[name] = _size(weights, key, axis)
    for name, prefix in (
        ("encoder_depth", "encoder_blocks"),
        ("decoder_depth", "decoder_blocks"),
        ("diffloss_d", "diffloss.net.res_blocks"),
    ):
        if count := count_modules(weights, rf"{re.escape(prefix)}\.(\d+)\."):
            implied[name] = count
    hidden, width = _size(weights, "encoder_blocks.0.mlp.fc1.weight", 0), implied.get("encoder_embed_dim")
    if hidden and width:
        implied["mlp_ratio"] = hidden / width
    implied |= _tokens(weights, config)
    known = {**implied, **config}
    for part in ("encoder", "decoder"):
        if f"{part}_num_heads" not in known:
            known[f"{part}_num_heads"] = _heads(part, known.get(f"{part}_embed_dim"), known.get(f"{part}_depth"))
    return known


def _tokens(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
    implied: dict[str, Any] = {}
    count, slots = _size(weights, "diffusion_pos_embed_learned", 1), _size(weights, "encoder_pos_embed_learned", 1)
    if count and slots > count:
        implied["buffer_size"] = slots - count
    patch, stride = max(config.get("patch_size", 1), 1), max(config.get("vae_stride", 16), 1)
    if count:
        implied["img_size"] = isqrt(count) * patch * stride
    if values := _size(weights, "z_proj.weight", 1):
        implied["vae_embed_dim"] = values // patch**2
    return implied


def _heads(part: str, width: int | None, depth: int | None) -> int:
    for size_width, size_depth, heads, *_ in SIZES.values():
        if (width, depth) == (size_width, size_depth):
            return heads
    raise ValueError(
        f"{part}_num_heads: expected it in the config, since {depth} layers of width {width} are no published "
        f"size, got none; give {part}_num_heads"
    )


def _size(weights: Mapping[str, Tensor], key: str, axis: int) -> int:
    """Return a tensor's size along an axis, 0 where there is none: the file may be damaged."""
    return weights[key].shape[axis] if key in weights and weights[key].dim() > axis else 0


def convert_mar(
    path: str | Path, folder: str | Path, *, config: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None
) -> Path:
    """Write model.safetensors and config.json of a pickled MAR (its averaged weights) or its KL autoencoder. Code in
    the file is not run. `config` has fields that the weights do not determine; dtype None is the file's."""
    path, folder = Path(path), Path(folder)
    state = unpickle(path)
    with naming(path):
        weights, _ = unwrap(state, WRAPPERS)
        is_vae = "post_quant_conv.weight" in weights
        model = (kl_from_state_dict if is_vae else mar_from_state_dict)(weights, config)
    (write_kl if is_vae else write_component)(model if dtype is None else model.to(dtype), folder)
    return folder
