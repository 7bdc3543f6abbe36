"""Published LlamaGen state dicts: key names, the layout of LANTERN's target, and the config that the weights imply."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.io.loading import count_modules, unwrap_state, without_prefixes
from mmspec.io.validation import check_types

_WRAPPERS = ("model", "module", "state_dict", "ema")
_PREFIXES = ("_orig_mod.", "module.")
# made again from the config, or filled while running
_BUFFERS = re.compile(r"(^|\.)(freqs_cis|causal_mask|kv_cache\.[kv]_cache|codebook_used)$")

# LANTERN's name -> the published one; queries, keys and values are stacked
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

# LANTERN's config field -> the published one
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
    """(weights, buffers that are no weights) of a checkpoint: under "model", "module", "state_dict" or "ema", also nested,
    or raw as consolidated FSDP files are; without the prefixes that compiling and wrapping leave.

    Where several stand, the first in the order of `wrappers` is taken: a file of LlamaGen with "model" and "ema" gives the
    trained weights, as the public transformer samplers do, and not their average, which the tokenizer scripts prefer.
    Raises ValueError when something in it is no tensor.
    """
    weights, buffers = {}, {}
    for name, value in unwrap_state(state, wrappers).items():
        name = without_prefixes(name, _PREFIXES)
        (buffers if _BUFFERS.search(name) else weights)[name] = value
    return weights, buffers


def is_lantern(state: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of LANTERN's target."""
    return any(name.startswith(("model.", "lm_head.")) for name in state)


def from_lantern(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published names of a target of LANTERN. Rows are stacked as they are: its rotation too turns adjacent channels.

    Names it does not know pass unchanged.
    """
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


def gpt_fields(weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of GPTConfig: the given ones, published or of LANTERN's config, and those that follow from the weights.

    A class table of exactly the given num_classes has no row for no class; where neither num_classes nor
    class_dropout_prob is given, its last row is taken for that.
    Raises ValueError when the kind of condition is not the given one, a given field is of a wrong type or the number of
    heads stays unknown.
    """
    given = _published(given)
    kind = "c2i" if _CLASSES in weights else "t2i" if any("cap_proj" in name for name in weights) else None
    if kind and given.get("model_type", kind) != kind:
        what = {"c2i": "a class table", "t2i": "a caption projection"}
        raise ValueError(f"model_type: expected {what.get(given['model_type'], given['model_type'])} as the config says, got "
                         f"{what[kind]}; use model_type {kind!r}")  # fmt: skip
    found: dict[str, Any] = {"model_type": kind} if kind else {}
    for name, key, axis in (
        ("dim", "norm.weight", 0),
        ("vocab_size", "output.weight", 0),
        ("caption_dim", _CAPTIONS, 1),
        ("cls_token_num", _CAPTIONS, 0),
    ):
        if _dims(weights, key) > axis:
            found[name] = weights[key].shape[axis]
    if _dims(weights, _CLASSES):
        rows = weights[_CLASSES].shape[0]
        if given.get("num_classes") == rows:
            found["class_dropout_prob"] = 0.0
        found["num_classes"] = rows - (given.get("class_dropout_prob", 1) > 0)
    if layers := count_modules(weights, r"layers\.(\d+)\."):
        found["n_layer"] = layers
    if not {"ffn", "multiple_of", "ffn_dim_multiplier"} & set(given) and _dims(weights, _HIDDEN):
        found["ffn"] = weights[_HIDDEN].shape[0]
    known = {**found, **given}
    if "n_head" not in known:
        known["n_head"] = _heads(known.get("dim"), known.get("n_layer"))
    if "ffn" in found and GPTConfig(dim=known.get("dim", 4096), n_head=1).hidden == found["ffn"]:
        del known["ffn"]  # what the public rule gives need not be said
    return known


def null_caption_rows(weights: Mapping[str, Tensor]) -> int | None:
    """How many rows of features for no caption are stored; None where the condition is no caption."""
    return weights[_CAPTIONS].shape[0] if _dims(weights, _CAPTIONS) else None


def _published(given: Mapping[str, Any]) -> dict[str, Any]:
    if "hidden_size" not in given:
        check_types(GPTConfig, given)
        return dict(given)
    # a config of transformers: its own model_type and much else say nothing here
    same = {field.name for field in fields(GPTConfig)} - {"model_type"} | {"image_size", "downsample_size"}
    said = {name: value for name, value in given.items() if name in LANTERN_FIELDS or name in same}
    check_types(GPTConfig, said, LANTERN_FIELDS)
    return {LANTERN_FIELDS.get(name, name): value for name, value in said.items()}


def implied_resolution(known: Mapping[str, Any], table: Tensor | None = None) -> dict[str, Any]:
    """The known fields with block_size: given, or from `image_size` and `downsample_size`, or from a saved rotary table.

    table: "freqs_cis" [prefix + frames * block_size, head_dim / 2, 2] of the file, None where it has none.
    Raises ValueError when two of them disagree or a size is no positive number.
    """
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
            raise ValueError(f"block_size: expected {tokens} for images of {image} pixels at {down} per token, got "
                             f"{known['block_size']}; correct one of them")  # fmt: skip
    if table is not None:
        tokens = (table.shape[0] - known.get("cls_token_num", 1)) // known.get("frames", 1)
        if known.setdefault("block_size", tokens) != tokens:
            raise ValueError(f"block_size: expected {tokens} as the checkpoint's positions say, got {known['block_size']}; "
                             "use the resolution the checkpoint was trained for")  # fmt: skip
    return known


def vq_fields(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Fields of VQConfig that follow from the weights; what is missing there is left out."""
    found: dict[str, Any] = {}
    for names, key in (
        (("codebook_size", "codebook_embed_dim"), "quantize.embedding.weight"),
        ((None, "z_channels"), "quant_conv.weight"),
        (("ch",), "encoder.conv_in.weight"),
    ):
        if key in weights:
            found |= {name: size for name, size in zip(names, weights[key].shape, strict=False) if name}
    for side in ("encoder", "decoder"):
        levels = count_modules(weights, side + r"\.conv_blocks\.(\d+)\.")
        widths = [f"{side}.conv_blocks.{level}.res.0.conv1.weight" for level in range(min(levels, len(weights)))]
        if found.get("ch") and widths and all(_dims(weights, name) for name in widths):
            multipliers = tuple(weights[name].shape[0] // found["ch"] for name in widths)
            found[f"{side}_ch_mult"] = multipliers if side == "encoder" else multipliers[::-1]
    if blocks := count_modules(weights, r"encoder\.conv_blocks\.0\.res\.(\d+)\."):
        found["num_res_blocks"] = blocks
    return found


def _dims(weights: Mapping[str, Tensor], name: str) -> int:
    """How many axes a tensor has, 0 for one that is not there: the file may be damaged."""
    return weights[name].dim() if name in weights else 0


def _heads(dim: int | None, layers: int | None) -> int:
    for size in ("B", "L", "XL", "XXL", "XXXL", "1B", "3B", "7B"):
        config = GPTConfig.preset(size)
        if (config.dim, config.n_layer) == (dim, layers):
            return config.n_head
    raise ValueError(f"n_head: expected it in the config, since {layers} layers of dim {dim} are no published size, got "
                     "none; give n_head")  # fmt: skip
