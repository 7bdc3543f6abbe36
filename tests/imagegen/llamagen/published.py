"""State dicts under the published names: their keys and shapes at full size, and small models of the same layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from mmspec.imagegen.llamagen.transformer import Transformer

_FILE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
TRANSFORMERS, TOKENIZERS = _FILE["transformers"], _FILE["tokenizers"]

# the published name -> LANTERN's
_LANTERN = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def transformer_shapes(name: str) -> dict[str, list[int]]:
    entry = TRANSFORMERS[name]
    layers = entry["config"].get("n_layer") or entry["config"]["num_hidden_layers"]
    each = {f"{entry['prefix']}{i}.{key}": shape for i in range(layers) for key, shape in entry["each"].items()}
    return {**entry["top"], **each}


def tokenizer_shapes(name: str) -> dict[str, list[int]]:
    shapes = {"quantize.codebook_used": [65536]}
    for shape, modules in TOKENIZERS[name]["modules"]:
        for module in modules.split():
            shapes[f"{module}.weight"] = shape
            if module != "quantize.embedding":
                shapes[f"{module}.bias"] = shape[:1]
    return shapes


def weights(shapes: dict[str, list[int]], device: str = "cpu") -> dict[str, Tensor]:
    """Random tensors, small enough that deep stacks stay finite."""
    if device == "meta":
        return {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    generator = torch.Generator().manual_seed(0)
    return {key: torch.randn(shape, generator=generator).mul_(0.02) for key, shape in shapes.items()}


def lantern_state(model: Transformer) -> dict[str, Tensor]:
    """A transformer's tensors under the names of LANTERN's target, whose queries, keys and values are apart."""
    config, out = model.config, {}
    rows = [count * config.head_dim for count in (config.n_head, config.kv_heads, config.kv_heads)]
    for name, value in model.state_dict().items():
        layer, own = "", name.removesuffix(".weight")
        if name.startswith("layers."):
            number, _, own = own.removeprefix("layers.").partition(".")
            layer = f"model.layers.{number}."
        if own == "attention.wqkv":
            out |= {f"{layer}self_attn.{x}_proj.weight": part for x, part in zip("qkv", value.split(rows), strict=True)}
        elif own in _LANTERN:
            out[f"{layer}{_LANTERN[own]}.weight"] = value
        else:
            out[f"model.{name}"] = value
    return out
