"""Published Wan state dicts into the block-causal model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmspec.core.config_fields import check_types
from mmspec.core.filling import fill
from mmspec.core.loading import sketch
from mmspec.video.wan.config import WanConfig, heads_of, own_names
from mmspec.video.wan.names import is_causal, to_diffusers, unwrapped
from mmspec.video.wan.transformer import CausalWan


def wan_from_state_dict(sd: Mapping[str, Any], config: WanConfig | Mapping[str, Any] | None = None) -> CausalWan:
    """The block-causal model of a Wan checkpoint, in eval mode, in the checkpoint's dtype.

    sd: tensors under the names of the causal checkpoints (Self-Forcing, CausVid, Krea), raw or under "generator_ema" or
        "generator", or under diffusers' names, of any size. They become the weights as they are, without a copy (meta tensors
        give a model on the meta device).
    config: field names of either; what the weights tell may be left out. They do not tell heads: those of a published width
        are known, others must be given.
    Raises ValueError, one sentence, for missing, unknown or misshapen tensors and for fields of a wrong type.
    """
    weights = unwrapped(sd)
    given = config.to_dict() if isinstance(config, WanConfig) else own_names(config or {})
    if is_causal(weights):
        weights = to_diffusers(weights)
        given.setdefault("text_len", 512)  # what these models pad to, and the text encoders of diffusers' pipelines do
    made = WanConfig.of(_fields(weights, given))
    return fill(sketch(lambda: CausalWan(made), len(weights), "config"), weights)


def _fields(weights: Mapping[str, Tensor], given: dict[str, Any]) -> dict[str, Any]:
    """The given fields and those that follow from the weights; what neither tells is left out."""
    check_types(WanConfig, given)
    found: dict[str, Any] = {"cross_attn_norm": "blocks.0.norm2.weight" in weights}
    for name, key, axis in (
        ("in_channels", "patch_embedding.weight", 1),
        ("out_channels", "patch_embedding.weight", 1),
        ("text_dim", "condition_embedder.text_embedder.linear_1.weight", 1),
        ("freq_dim", "condition_embedder.time_embedder.linear_1.weight", 1),
        ("ffn_dim", "blocks.0.ffn.net.0.proj.weight", 0),
    ):
        if size := _size(weights, key, axis):
            found[name] = size
    patch = weights.get("patch_embedding.weight")
    if patch is not None and patch.dim() == 5:
        found["patch_size"] = tuple(patch.shape[2:])
    numbers = [int(name.split(".")[1]) for name in weights if re.match(r"blocks\.\d+\.", name)]
    if numbers:
        found["num_layers"] = max(numbers) + 1
    known = {**found, **given}
    if width := _size(weights, "patch_embedding.weight", 0):
        if "num_attention_heads" not in known:
            size = known.get("attention_head_dim")
            known["num_attention_heads"] = width // size if size else heads_of(width)
        if known["num_attention_heads"] > 0:
            known.setdefault("attention_head_dim", width // known["num_attention_heads"])
    return known


def _size(weights: Mapping[str, Tensor], key: str, axis: int) -> int | None:
    value = weights.get(key)
    return None if value is None or value.dim() <= axis else value.shape[axis]
