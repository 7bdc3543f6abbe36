"""What the published drafters' files have in common: names of a Llama layer, and complaints about keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.loading import some, spoiled

EMBEDDING = "embed_tokens.weight"
ROTATION = ("rope_parameters", "rope_scaling", "rope_theta")  # what a config says of rotary positions
PLAIN, ONE_AXIS = ("default",), ("default", "mrope")


def feature_fields(config: Mapping[str, Any], rotations: Collection[str] = PLAIN) -> dict[str, Any]:
    """Sizes of a drafter from a published config; absent ones take the public classes' fallbacks.

    rotations: see `rotary_base`.
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
        "rope_theta": rotary_base(config, rotations),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "bias": config.get("bias", True),
        "qkv_bias": config.get("qkv_bias", False),
    }


def rotary_base(config: Mapping[str, Any], rotations: Collection[str] = PLAIN) -> float:
    """The base positions turn with, of `rope_parameters` (`rope_scaling` in older files) or else of the config itself.

    rotations: the kinds that turn positions on one axis as plain ones do: PLAIN, or ONE_AXIS where the public code gives
    all axes of M-RoPE the same position, so that its sections make no difference.
    Raises ValueError for any other kind, for positions that turn part of a head only, and for bases per kind of layer.
    """
    base = config.get("rope_theta")
    partial = {"partial_rotary_factor": config.get("partial_rotary_factor")}
    for name in ("rope_scaling", "rope_parameters"):  # newer files say it in the second, so that it has the last word
        rope = config.get(name) or {}
        if not isinstance(rope, Mapping):
            raise ValueError(f"{name}: expected fields of rotary positions or null, got {rope!r}; correct the config")
        if any(isinstance(value, Mapping) for value in rope.values()):
            raise ValueError(f"{name}: expected one kind of rotary positions, got those of {', '.join(map(str, rope))}; the "
                             "drafter has one layer")  # fmt: skip
        kind = "mrope" if "mrope_section" in rope else rope.get("rope_type", rope.get("type", "default"))
        if kind not in rotations:
            raise ValueError(f"{name}: expected plain rotary positions, got {kind!r}; a drafter here would turn positions "
                             "otherwise than it was trained")  # fmt: skip
        partial[name] = rope.get("partial_rotary_factor")
        base = rope.get("rope_theta") or base
    if odd := {name: value for name, value in partial.items() if value not in (None, 1)}:
        raise ValueError(
            f"partial_rotary_factor: expected 1, whole heads turned, got {odd}; no drafter here has another"
        )
    return float(base or 10000.0)


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
    Raises ValueError that lists every missing and every unknown key, or every shape that does not fit,
    and for NaN or Inf.
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
    if named := spoiled({key: state[key] for key in wanted}):
        raise ValueError(f"sd: expected finite weights, got NaN or Inf in {some(named)}; fetch the file again")
    drafter.load_state_dict(filled)
    return drafter
