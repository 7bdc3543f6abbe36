"""EAGLE-3 drafters as SafeAILab publishes them, and as `speculators` saves them for vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.io.pretrained import EMBEDDING, ONE_AXIS, SCALED, drafter_sizes, fill_drafter, layer_names, rotary_fields
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.published_files import (
    embedding_rows,
    layer_count,
    named_levels,
    refuse_unread,
)
from mmspec.vlm.drafters.eagle3.eagle3_config import Eagle3Config, levels_of

# tensors of `speculators` that only training needs, and the embedding where it equals the target's
_UNUSED = (EMBEDDING, "verifier_lm_head.weight", "verifier_norm.weight", "d2t", "t2d")
_ROTATIONS = (*ONE_AXIS, *SCALED)  # `speculators` trains with positions on a single axis whatever the target has
_QWEN3_DIM = 128  # the default head_dim of transformers' Qwen3 config


def tensor_names(state: dict[str, Tensor], config: Eagle3Config) -> dict[str, tuple[str, ...]]:
    """Return a dict from our names of the weights to the published names."""
    first = "midlayer." if any(name.startswith("midlayer.") for name in state) else "layers.0."
    names = {
        **_layer_names(first, "layer.", config),
        "embed_norm.weight": (f"{first}input_layernorm.weight",),
        "state_norm.weight": (f"{first}hidden_norm.weight",),
        "fc.weight": ("fc.weight",),
        "norm.weight": ("norm.weight",),
    }
    if not config.tied_head:
        names["head.weight"] = ("lm_head.weight",)
    for index in range(1, config.num_hidden_layers):
        prefix, own = f"layers.{index}.", f"rest.{index - 1}."
        names |= _layer_names(prefix, own, config) | {f"{own}input_norm.weight": (f"{prefix}input_layernorm.weight",)}
    if config.drafted < config.vocab_size:
        names |= {"head.d2t": ("d2t",), "head.t2d": ("t2d",)}
    if config.norm_before_fc:
        names["levels_norm.weight"] = ("input_norm.weight",)
    if config.fc_norm:
        names |= {f"level_norms.{n}.weight": (f"fc_norm.{n}.weight",) for n in range(len(config.levels))}
    return names | {name: (name,) for name in (EMBEDDING,) if config.own_embedding}


def _layer_names(prefix: str, own: str, config: Eagle3Config) -> dict[str, tuple[str, ...]]:
    names = layer_names(prefix)
    for name in ["qkv", "out"] * config.attention_bias + ["gate_up", "down"] * config.mlp_bias:
        group = names[f"layer.{name}.weight"]
        names[f"layer.{name}.bias"] = tuple(theirs.removesuffix("weight") + "bias" for theirs in group)
    if config.qk_norm:
        names |= {f"layer.{x}_norm.weight": (f"{prefix}self_attn.{x}_norm.weight",) for x in "qk"}
    return {own + name.removeprefix("layer."): group for name, group in names.items()}


def filled(drafter: nn.Module, state: dict[str, Tensor], *others: str) -> nn.Module:
    """Return the drafter with the weights of a published file; `others` are weights that keep their published names."""
    names = tensor_names(state, drafter.config) | {name: (name,) for name in others}
    return fill_drafter(drafter, state, names, _UNUSED)


def eagle3_fields(state: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an Eagle3Config from a published file, without the levels and the embedding. Configs copy
    these from the target or leave them out. The tensors, under plain names, show the number of layers, the norms of
    queries and keys, the width of a head, and whether the target's head is meant."""
    inner = config.get("transformer_layer_config")
    layer = dict(config) if inner is None else dict(inner)
    classes, kind = config.get("architectures", ()), layer.get("model_type", "llama")
    if inner is not None and kind not in ("llama", "qwen3"):
        raise ValueError(f"model_type: expected a drafter with a 'llama' or 'qwen3' layer, got {kind!r}")
    read = ("attention_bias", "use_sliding_window", "norm_before_fc", "fc_norm", "norm_output")
    refuse_unread(layer, *read)
    own = config.get("eagle_config", {})
    refuse_unread(own)
    for name in ("use_aux_hidden_state", "use_last_layernorm"):
        if own.get(name) is False:
            raise ValueError(
                f"eagle_config.{name}: expected true, as in EAGLE-3, got false; no other drafter of this layout is "
                "supported"
            )
    # the trainer's class with this name means the norm in front of the head, which all drafters have
    output = bool(config.get("norm_output"))
    if "LlamaForCausalLMEagle3" in classes and config.get("norm_output") is not None:
        if not output:
            raise ValueError(
                "norm_output: expected true or no such field for LlamaForCausalLMEagle3, got false, a head without "
                "a norm; it is not supported"
            )
        output = False
    first = "midlayer." if any(name.startswith("midlayer.") for name in state) else "layers.0."
    # the first layer's tensors show its biases and norms, since the fields of a flat config can be the target's
    flat = None if inner is not None else {name.removeprefix(first) for name in state if name.startswith(first)}
    if kind == "qwen3":
        layer.setdefault("head_dim", _QWEN3_DIM)
    count, declared = layer_count(state) or 1, layer.get("num_hidden_layers", 1)
    if count != declared and (count > 1 or inner is not None):
        raise ValueError(
            f"num_hidden_layers: expected {count} as in the tensors, got {declared}; fetch all files of the drafter"
        )
    if flat is not None and len(kinds := layer.get("layer_types", ())) == declared != count:
        layer["layer_types"] = ["full_attention"] if "LlamaEagle3DraftModel" in classes else kinds[:count]
    layer |= _head_width(state, layer, first)
    turned = _sections(layer, classes) if inner is None else {}
    rotary = turned or rotary_fields(layer, _ROTATIONS if inner is not None else ("default", *SCALED))
    plain = {name: value for name, value in layer.items() if not name.startswith("rope_")}
    fields = drafter_sizes({**plain, "num_hidden_layers": 1})
    fields = {name: value for name, value in fields.items() if name not in ("bias", "qkv_bias", "rope_theta")}
    windows = layer_windows(layer, count)
    if turned and any(windows):
        raise ValueError(
            f"sliding_window: expected null with positions on several axes, got windows {windows}; no such drafter "
            "is supported"
        )
    head = state.get("lm_head.weight")
    listed = len(state["d2t"]) if "d2t" in state else fields["vocab_size"]
    if (drafted := config.get("draft_vocab_size", listed)) != listed and "d2t" in state:
        raise ValueError(
            f"draft_vocab_size: expected {listed}, as many tokens as d2t lists, got {drafted}; give the config the "
            "file was made with"
        )
    tapped = config.get("target_hidden_size", fields["hidden_size"])
    return (
        fields
        | rotary
        | {
            "draft_vocab_size": drafted,
            "target_hidden_size": tapped if tapped != fields["hidden_size"] else 0,
            "tied_head": head is None,
            "norm_before_residual": bool(config.get("norm_before_residual")),
            "num_hidden_layers": count,
            "windows": windows,
            "qk_norm": kind == "qwen3" if flat is None else "self_attn.q_norm.weight" in flat,
            "attention_bias": bool(layer.get("attention_bias")) if flat is None else "self_attn.o_proj.bias" in flat,
            "mlp_bias": bool(layer.get("mlp_bias")) and kind != "qwen3"
            if flat is None
            else "mlp.down_proj.bias" in flat,
            "norm_output": output,
            **{name: bool(config.get(name)) for name in ("norm_before_fc", "fc_norm")},
        }
    )


def _head_width(state: dict[str, Tensor], layer: dict[str, Any], first: str) -> dict[str, int]:
    """Return the width of a head by the tensors of queries and keys, where they agree; {} where they do not."""
    heads, groups = layer.get("num_attention_heads", 0), layer.get("num_key_value_heads")
    shapes = [state[name].shape for x in "qk" if (name := f"{first}self_attn.{x}_proj.weight") in state]
    numbers = [number for number in (heads, groups or heads) if number]
    if len(shapes) != 2 or len(numbers) != 2 or any(shape[0] % n for shape, n in zip(shapes, numbers, strict=True)):
        return {}
    widths = {shape[0] // number for shape, number in zip(shapes, numbers, strict=True)}
    return {"head_dim": widths.pop()} if len(widths) == 1 else {}


def _leave_out_sections(layer: dict[str, Any]) -> None:
    """Leave the sections out of a config whose class gives all axes the same position."""
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(rope := layer.get(name), Mapping):
            kind = {"rope_type": "default"} if "mrope" in (rope.get("type"), rope.get("rope_type")) else {}
            left_out = ("mrope_section", "mrope_interleaved", "type" if kind else "")
            layer[name] = {key: value for key, value in rope.items() if key not in left_out} | kind


def _sections(layer: dict[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Return the rotary positions of a flat config with several axes; {} for a single axis. AngelSlim's class
    interleaves the axes of every such config, and turns with one axis where the kind is "default" and nothing says
    "interleaved". NeMo Automodel's always has one axis. All others interleave on demand."""
    rope = layer.get("rope_parameters") or layer.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return {}
    if "LlamaEagle3DraftModel" in classes:
        _leave_out_sections(layer)
        return {}
    kind, interleaved = rope.get("rope_type", rope.get("type", "default")), rope.get("mrope_interleaved", False)
    angelslim = "Eagle3LlamaForCausalLM" in classes
    section = rope.get("mrope_section")
    if section is None and kind != "mrope" and not interleaved:
        return {}
    if "mrope" not in (kind, rope.get("type")) and angelslim and not interleaved:
        _leave_out_sections(layer)
        return {}
    whole = isinstance(section, list) and len(section) == 3 and all(type(x) is int and x >= 0 for x in section)
    if not whole or kind not in ("mrope", "default") or not isinstance(interleaved, bool):
        raise ValueError(f"mrope_section: expected three whole numbers, unscaled, got {dict(rope)}; correct the config")
    axes = {"rope_type": "default", "mrope_section": section, "mrope_interleaved": interleaved or angelslim}
    return rotary_fields(layer, ONE_AXIS) | {"rope_scaling": axes}


def layer_windows(layer: dict[str, Any], count: int) -> tuple[int, ...]:
    """Return the positions that a query of each layer sees, 0 for all, by the config of a Llama or Qwen3 model. Qwen3
    reads its window only with `use_sliding_window`. Without `layer_types`, its windows start at layer
    `max_window_layers`. Llama has no windows; `speculators` applies them to the layers that `layer_types` names."""
    qwen, width = layer.get("model_type") == "qwen3", layer.get("sliding_window")
    if qwen and not layer.get("use_sliding_window"):
        width = None
    kinds = layer.get("layer_types")
    if kinds is None:
        first = layer.get("max_window_layers", 28) if qwen and width else count
        kinds = ["sliding_attention" if index >= first else "full_attention" for index in range(count)]
    if len(kinds) != count or set(kinds) - {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types: expected full_attention or sliding_attention for {count} layers, got {kinds}")
    if width is not None and width < 1:
        raise ValueError(f"sliding_window: expected at least 1 or null, got {width}")
    return tuple((width or 0) if kind == "sliding_attention" else 0 for kind in kinds)


def has_own_embedding(state: dict[str, Tensor], target: nn.Module | None) -> bool:
    """Return whether a file holds an embedding that differs from the target's, in the stored precision."""
    rows = state.get(EMBEDDING)
    if rows is None or target is None:
        return rows is not None
    theirs = embedding_rows(take_apart(target))
    return theirs.is_meta or rows.shape != theirs.shape or not torch.equal(theirs.to(rows), rows)


def published_levels(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> tuple[int, ...]:
    """Return the levels that a config names, see `named_levels`, or the usual levels of the target."""
    named = named_levels(config)
    width = config.get("target_hidden_size") or config.get("transformer_layer_config", config).get("hidden_size")
    fc = state.get("fc.weight")
    joined = fc.shape[-1] // width if fc is not None and fc.dim() == 2 and width and not fc.shape[-1] % width else None
    if named is not None:
        levels, name = named
        if joined is not None and len(levels) != joined:
            raise ValueError(
                f"{name}: expected {joined} layers of the target, as many as fc.weight joins, got {len(levels)}; "
                "give the config the file was made with"
            )
        normed = "Qwen3Eagle3Model" in config.get("architectures", ()) and target is not None
        if normed and max(levels) >= take_apart(target).layers:
            raise ValueError(
                f"{name}: expected layers in front of the target's last, got {max(levels) - 1}, whose output that "
                "trainer reads behind the final norm; it is not supported"
            )
        return levels
    if joined not in (None, 3):
        raise ValueError(
            f"config: expected target_layer_ids or eagle_aux_hidden_state_layer_ids, the {joined} layers of the "
            "target that fc.weight joins, got none; give the config the file was made with"
        )
    if target is None:
        raise ValueError(
            "config: expected eagle_aux_hidden_state_layer_ids, or a target whose usual levels are read, got "
            "neither; pass the target"
        )
    return levels_of(take_apart(target).layers)
