"""What the published drafters' files have in common: names of a Llama layer, and complaints about keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

EMBEDDING = "embed_tokens.weight"


def feature_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of a drafter from a published config; absent ones take the public classes' fallbacks.

    Raises ValueError for a field that is missing or asks for what no public drafter has.
    """
    needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    missing = [name for name in needed if name not in config]
    if missing:
        raise ValueError(f"config: expected the fields {', '.join(needed)}, got none for {', '.join(missing)}")
    if config.get("num_hidden_layers", 1) != 1:
        raise ValueError(
            f"config: expected a drafter of one layer, got num_hidden_layers {config['num_hidden_layers']}"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"config: expected hidden_act 'silu', got {config['hidden_act']!r}")
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    return {
        **{name: config[name] for name in needed},
        "num_key_value_heads": 0 if groups == heads else groups,
        "head_dim": config.get("head_dim") or 0,
        "rope_theta": float(config.get("rope_theta") or 10000.0),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "bias": config.get("bias", True),
        "qkv_bias": config.get("qkv_bias", False),
    }


def layer_names(prefix: str, qkv_bias: bool = False) -> dict[str, tuple[str, ...]]:
    """Our names of a DraftLayer's weights (behind "layer."), and the published ones that are stacked into each.

    prefix: of the published layer, "layers.0." or "midlayer.".
    """
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    names = {
        "layer.qkv.weight": tuple(f"{attention}{x}_proj.weight" for x in "qkv"),
        "layer.out.weight": (f"{attention}o_proj.weight",),
        "layer.norm.weight": (f"{prefix}post_attention_layernorm.weight",),
        "layer.gate_up.weight": (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"),
        "layer.down.weight": (f"{mlp}down_proj.weight",),
    }
    if qkv_bias:
        names["layer.qkv.bias"] = tuple(f"{attention}{x}_proj.bias" for x in "qkv")
    return names


def fill(
    drafter: nn.Module,
    state: Mapping[str, Tensor],
    names: Mapping[str, tuple[str, ...]],
    unused: Iterable[str] = (EMBEDDING,),
) -> nn.Module:
    """Loads published tensors into our module, float32.

    names: our name -> the published names whose rows are stacked into it.   unused: published names that may be there
    and hold nothing of ours (the embedding is the target's).
    Raises ValueError that lists every missing and every unknown key, or every shape that does not fit.
    """
    wanted = [name for group in names.values() for name in group]
    missing = [name for name in wanted if name not in state]
    unknown = sorted(set(state) - set(wanted) - set(unused))
    if missing or unknown:
        raise ValueError(f"sd: expected the published keys; missing {missing}, unknown {unknown}")
    own = drafter.state_dict()
    filled, misfits = {}, []
    for name, group in names.items():
        rows, shape = [state[key] for key in group], own[name].shape
        fits = all(part.dim() == len(shape) and part.shape[1:] == shape[1:] for part in rows)
        if not fits or sum(map(len, rows)) != shape[0]:
            got = ", ".join(str(tuple(part.shape)) for part in rows)
            misfits.append(f"{' + '.join(group)}: expected shape {tuple(shape)} by the config, got {got}")
            continue
        filled[name] = (torch.cat(rows) if len(rows) > 1 else rows[0]).to(own[name].dtype)
    if misfits:
        raise ValueError("; ".join([*misfits, "give the config the file was made with"]))
    drafter.load_state_dict(filled)
    return drafter
