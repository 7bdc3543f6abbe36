"""Published LlamaGen state dicts: key names, the layout of LANTERN's target, and the implied config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.io.loading import count_modules, unwrap_state, without_prefixes
from mmspec.io.validation import check_types

_WRAPPERS = ("model", "module", "state_dict", "ema")
_PREFIXES = ("_orig_mod.", "module.")
# buffers that are rebuilt from the config or filled while running
_BUFFERS = re.compile(r"(^|\.)(freqs_cis|causal_mask|kv_cache\.[kv]_cache|codebook_used)$")

# LANTERN's name -> the published name; queries, keys and values are stacked
_TOP = {
    "model.embed_tokens.weight": "tok_embeddings.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "self_attn.o_proj.weight": "attention.wo.weight",
    "mlp.gate_proj.weight": "feed_forward.w1.weight",
    "mlp.up_proj.weight": "feed_forward.w3.weight",
    "mlp.down_proj.weight": "feed_forward.w2.weight",
    "input_layernorm.weight": "attention_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
_CONDITION = "cls_embedding."
_PARTS = tuple(f"self_attn.{x}_proj.weight" for x in "qkv")
_STACKED = "attention.wqkv.weight"

# LANTERN's config field -> the published field
LANTERN_FIELDS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "num_key_value_heads": "n_kv_head",
    "intermediate_size": "ffn",
    "rms_norm_eps": "norm_eps",
    "input_type": "model_type",
    "class_dropout_p": "class_dropout_prob",
}


def unwrap(
    state: Mapping[str, Any], wrappers: tuple[str, ...] = _WRAPPERS
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights and the buffers of a checkpoint, raw or nested under "model", "module", "state_dict" or "ema",
    without prefixes. The first of `wrappers` counts: "model" and "ema" give the trained weights, as in the public
    transformer samplers, and not their average, which the tokenizer scripts prefer."""
    weights, buffers = {}, {}
    for name, value in unwrap_state(state, wrappers).items():
        name = without_prefixes(name, _PREFIXES)
        (buffers if _BUFFERS.search(name) else weights)[name] = value
    return weights, buffers


def is_lantern(state: Mapping[str, Tensor]) -> bool:
    return any(name.startswith(("model.", "lm_head.")) for name in state)


def from_lantern(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename LANTERN's weights to the published names; its rotation turns adjacent channels too, so rows stay."""
    out, stacks = {}, {}
    for name, value in state.items():
        layer, rest = _split(name, "model.layers.")
        if rest in _PARTS:
            stacks.setdefault(layer, {})[rest] = value
        elif rest in _LAYER:
            out[f"layers.{layer}.{_LAYER[rest]}"] = value
        else:
            own = name.removeprefix("model.")
            out[_TOP.get(name, own if own.startswith(_CONDITION) else name)] = value
    for layer, parts in stacks.items():
        if len(parts) == len(_PARTS):
            out[f"layers.{layer}.{_STACKED}"] = torch.cat([parts[name] for name in _PARTS])
        else:
            out |= {f"model.layers.{layer}.{name}": value for name, value in parts.items()}
    return out


def _split(name: str, prefix: str) -> tuple[str, str]:
    if not name.startswith(prefix):
        return "", ""
    layer, _, rest = name.removeprefix(prefix).partition(".")
    return layer, rest


_HIDDEN = "layers.0.feed_forward.w1.weight"
_CLASSES, _CAPTIONS = "cls_embedding.embedding_table.weight", "cls_embedding.uncond_embedding"


def gpt_fields(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of GPTConfig, from a published or LANTERN's config and from the weights under published names.
    A class table with exactly the config's num_classes has no row for no class. Without num_classes and
    class_dropout_prob in the config, the last row counts as the row for no class."""
    config = _published(config)
    kind = "c2i" if _CLASSES in weights else "t2i" if any("cap_proj" in name for name in weights) else None
    if kind and config.get("model_type", kind) != kind:
        parts = {"c2i": "a class table", "t2i": "a caption projection"}
        raise ValueError(
            f"model_type: expected {parts.get(config['model_type'], config['model_type'])} as in the config, got "
            f"{parts[kind]}; use model_type {kind!r}"
        )
    implied: dict[str, Any] = {"model_type": kind} if kind else {}
    for name, key, axis in (
        ("dim", "norm.weight", 0),
        ("vocab_size", "output.weight", 0),
        ("caption_dim", _CAPTIONS, 1),
        ("cls_token_num", _CAPTIONS, 0),
    ):
        if _dims(weights, key) > axis:
            implied[name] = weights[key].shape[axis]
    if _dims(weights, _CLASSES):
        rows = weights[_CLASSES].shape[0]
        if config.get("num_classes") == rows:
            implied["class_dropout_prob"] = 0.0
        implied["num_classes"] = rows - (config.get("class_dropout_prob", 1) > 0)
    if layers := count_modules(weights, r"layers\.(\d+)\."):
        implied["n_layer"] = layers
    if not {"ffn", "multiple_of", "ffn_dim_multiplier"} & set(config) and _dims(weights, _HIDDEN):
        implied["ffn"] = weights[_HIDDEN].shape[0]
    known = {**implied, **config}
    if "n_head" not in known:
        known["n_head"] = _heads(known.get("dim"), known.get("n_layer"))
    if "ffn" in implied and GPTConfig(dim=known.get("dim", 4096), n_head=1).hidden == implied["ffn"]:
        del known["ffn"]  # the public formula gives this width already
    return known


def null_caption_rows(weights: Mapping[str, Tensor]) -> int | None:
    """Return the number of stored rows of features for no caption; None where the condition is no caption."""
    return weights[_CAPTIONS].shape[0] if _dims(weights, _CAPTIONS) else None


def _published(config: Mapping[str, Any]) -> dict[str, Any]:
    if "hidden_size" not in config:
        check_types(GPTConfig, config)
        return dict(config)
    # the other fields of a config of transformers, such as its own model_type, have no meaning here
    same = {field.name for field in fields(GPTConfig)} - {"model_type"} | {"image_size", "downsample_size"}
    known = {name: value for name, value in config.items() if name in LANTERN_FIELDS or name in same}
    check_types(GPTConfig, known, LANTERN_FIELDS)
    return {LANTERN_FIELDS.get(name, name): value for name, value in known.items()}


def implied_resolution(known: Mapping[str, Any], table: Tensor | None = None) -> dict[str, Any]:
    """Return the known fields with block_size: its own, or that of `image_size`, or that of the file's rotary table
    "freqs_cis" [prefix + frames * block_size, head_dim / 2, 2]."""
    known = dict(known)
    for name in ("image_size", "downsample_size"):
        size = known.get(name)
        if size is not None and not (isinstance(size, Integral) and size > 0):
            raise ValueError(f"{name}: expected a positive whole number, got {size!r:.60}; correct the config")
    image, down = known.pop("image_size", None), known.pop("downsample_size", None) or 16
    if image is not None:
        if image % down:
            raise ValueError(f"image_size: expected a multiple of downsample_size {down}, got {image}; change one")
        tokens = (image // down) ** 2
        if known.setdefault("block_size", tokens) != tokens:
            raise ValueError(
                f"block_size: expected {tokens} for images of {image} pixels at {down} per token, got "
                f"{known['block_size']}; correct one of them"
            )
    if table is not None:
        tokens = (table.shape[0] - known.get("cls_token_num", 1)) // known.get("frames", 1)
        if known.setdefault("block_size", tokens) != tokens:
            raise ValueError(
                f"block_size: expected {tokens} as in the checkpoint's positions, got {known['block_size']}; "
                "use the resolution the checkpoint was trained for"
            )
    return known


def vq_fields(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    implied: dict[str, Any] = {}
    for names, key in (
        (("codebook_size", "codebook_embed_dim"), "quantize.embedding.weight"),
        ((None, "z_channels"), "quant_conv.weight"),
        (("ch",), "encoder.conv_in.weight"),
    ):
        if key in weights:
            implied |= {name: size for name, size in zip(names, weights[key].shape, strict=False) if name}
    for side in ("encoder", "decoder"):
        levels = count_modules(weights, side + r"\.conv_blocks\.(\d+)\.")
        widths = [f"{side}.conv_blocks.{level}.res.0.conv1.weight" for level in range(min(levels, len(weights)))]
        if implied.get("ch") and widths and all(_dims(weights, name) for name in widths):
            multipliers = tuple(weights[name].shape[0] // implied["ch"] for name in widths)
            implied[f"{side}_ch_mult"] = multipliers if side == "encoder" else multipliers[::-1]
    if blocks := count_modules(weights, r"encoder\.conv_blocks\.0\.res\.(\d+)\."):
        implied["num_res_blocks"] = blocks
    return implied


def _dims(weights: Mapping[str, Tensor], name: str) -> int:
    """Return the number of axes of a tensor, 0 for a missing tensor: the file may be damaged."""
    return weights[name].dim() if name in weights else 0


def _heads(dim: int | None, layers: int | None) -> int:
    for size in ("B", "L", "XL", "XXL", "XXXL", "1B", "3B", "7B"):
        config = GPTConfig.preset(size)
        if (config.dim, config.n_layer) == (dim, layers):
            return config.n_head
    raise ValueError(
        f"n_head: expected it in the config, since {layers} layers of dim {dim} are no published size, got "
        "none; give n_head"
    )
