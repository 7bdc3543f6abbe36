"""Key names: what wraps a published state dict, what in it is no weight, and the layout LANTERN publishes its target in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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
FIELDS = {
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
    while wrapper := next((name for name in wrappers if isinstance(state.get(name), Mapping)), None):
        state = state[wrapper]
    strange = sorted(name for name, value in state.items() if not isinstance(value, Tensor))
    if strange or not state:
        raise ValueError(f"sd: expected tensors, or a mapping of them under one of {', '.join(wrappers)}, got "
                         f"{strange[:4] or 'nothing'}; pass the state dict itself")  # fmt: skip
    weights, buffers = {}, {}
    for name, value in state.items():
        while prefix := next((p for p in _PREFIXES if name.startswith(p)), None):
            name = name.removeprefix(prefix)
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
