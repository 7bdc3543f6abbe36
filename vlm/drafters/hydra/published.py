"""Hydra and Hydra++ heads as zankner publishes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.drafting.published import ROTATION, feature_fields, fill, layer_names
from mmspec.vlm.drafters.hydra import Hydra, HydraConfig

_PREFIX = "prefix_embeding_layer."  # spelled so in the files
_LAYER = f"{_PREFIX}layers.0."
# the target's own embedding, one that the prefix layer never reads, and a table that follows from the config
_UNUSED = ("input_embed_fn.weight", f"{_PREFIX}embed_tokens.weight", f"{_LAYER}self_attn.rotary_emb.inv_freq")


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Hydra:
    """hydra_num_heads and hydra_num_layers are read from the config; whether there is a prefix layer (Hydra++), and whether
    dropout was placed between the blocks, from the names; widths from the tensors.

    The published config says nothing of the prefix layer, which is a Llama model of one layer in the target's settings: its
    heads, norm epsilon and rotary base are taken from the target, or from the config where they have been added to it.
    A file holds the one block that all but the first of a head share once for each; each copy becomes a block of ours.
    Raises ValueError also for heads that do not read the drafted tokens, and for states of earlier layers.
    """
    needed = ("hydra_num_heads", "hydra_num_layers")
    missing = [name for name in needed if name not in config]
    if missing:
        raise ValueError(f"config: expected the fields {', '.join(needed)}, got none for {', '.join(missing)}")
    if config.get("hydra_head_arch", "mlp") not in ("mlp", "prefix-mlp"):
        raise ValueError(f"hydra_head_arch: expected 'mlp' or 'prefix-mlp', got {config['hydra_head_arch']!r}")
    if config.get("hidden_state_offset"):
        raise ValueError(
            f"hidden_state_offset: expected 0, the target's last states, got {config['hidden_state_offset']}"
        )
    if not config.get("grounded_heads", True):
        raise ValueError(
            "grounded_heads: expected heads that read the drafted tokens, got false; no drafter here has others"
        )
    heads, layers = (config[name] for name in needed)
    names, last = _heads(heads, layers, dropped="hydra_lm_head.0.1.weight" in state)
    if last not in state:
        raise ValueError(f"sd: expected the published keys; missing {last!r}, got {sorted(state)[:8]}")
    vocab, width = state[last].shape
    fields: dict[str, Any] = {"hidden_size": width, "vocab_size": vocab, "heads": heads, "layers": layers}
    if config.get("hydra_head_arch") == "prefix-mlp" or any(name.startswith(_PREFIX) for name in state):
        fields |= _layer_fields(state, config, target) | {"prefix_layer": True, "final_norm": True}
        names |= layer_names(_LAYER) | {
            "norm.weight": (f"{_LAYER}input_layernorm.weight",),
            "final_norm.weight": (f"{_PREFIX}norm.weight",),
        }
    return fill(Hydra(HydraConfig(**fields)), state, names, _UNUSED)


def _heads(heads: int, layers: int, dropped: bool) -> tuple[dict[str, tuple[str, ...]], str]:
    """Our names of the heads' weights with the published ones, and the name of the first vocabulary-wide weight."""
    names: dict[str, tuple[str, ...]] = {}
    for head in range(heads):
        vocabulary = f"hydra_lm_head.{head}.1" if dropped else f"hydra_lm_head.{head}"
        for part in ("weight", "bias"):
            names[f"heads.{head}.{part}"] = (f"{vocabulary}.{part}",)
            for layer in range(layers):
                # a dropout takes a number of its own in front of every block
                block = f"hydra_mlp.{head}.{2 * layer + 1 if dropped else layer}"
                skip = (f"{block}.res_connection.{part}",) if layer == 0 else ()
                names[f"blocks.{head}.{layer}.linear.{part}"] = (*skip, f"{block}.linear.{part}")
    return names, names["heads.0.weight"][0]


def _layer_fields(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> dict[str, Any]:
    theirs = {} if target is None else target.config.get_text_config(decoder=True).to_dict()
    if any(name in config for name in ROTATION):  # one of them says it all
        theirs = {name: value for name, value in theirs.items() if name not in ROTATION}
    wanted = (
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_act",
        "rms_norm_eps",
    )
    sources = (theirs, config)
    found = {name: source[name] for source in sources for name in (*wanted, *ROTATION) if source.get(name) is not None}
    if "num_attention_heads" not in found:
        raise ValueError("config: expected num_attention_heads of the prefix layer or the target to take it of, got neither; "
                         "give the target")  # fmt: skip
    gate = state.get(f"{_LAYER}mlp.gate_proj.weight", torch.zeros(1))  # a missing one is listed with all others
    fields = feature_fields({"intermediate_size": len(gate)} | found | {"hidden_size": 1, "vocab_size": 1})
    kept = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps")
    return {name: fields[name] for name in kept}
