"""Gemma 4 assistants as Google publishes them, for transformers' Gemma4Assistant and Gemma4UnifiedAssistant classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import fill
from mmspec.vlm.drafters.gemma4.drafter import FULL, SLIDING, Gemma4Assistant, Gemma4AssistantConfig

_INNER = ("self_attn.q_proj", "self_attn.q_norm", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
          "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
          "post_feedforward_layernorm")  # fmt: skip
_SAME = ("num_attention_heads", "hidden_size", "vocab_size", "intermediate_size", "layer_types", "head_dim",
         "sliding_window")  # fmt: skip


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Gemma4Assistant:
    """Sizes stand in `text_config`. A head that scores clusters (`use_ordered_embeddings`) has two tensors more.

    Raises ValueError also for layers with weights of their own for keys, experts, or embeddings for each layer.
    """
    drafter = Gemma4Assistant(_config(config))
    state = {name.removeprefix("model."): value for name, value in state.items()}
    names = {name: (name,) for name in ("pre_projection.weight", "post_projection.weight", "embed_tokens.weight")}
    names["norm.weight"] = ("norm.weight",)
    for index in range(len(drafter.layers)):
        prefix = f"layers.{index}."
        names |= {f"{prefix}{one.rpartition('.')[2]}.weight": (f"{prefix}{one}.weight",) for one in _INNER}
        names[f"{prefix}layer_scalar"] = (f"{prefix}layer_scalar",)
    if drafter.masked_embedding is not None:
        names |= {f"masked_embedding.{x}": (f"masked_embedding.{x}",) for x in ("token_ordering", "centroids.weight")}
    return fill(drafter, state, names, ("lm_head.weight",))


def _config(config: Mapping[str, Any]) -> Gemma4AssistantConfig:
    text = config.get("text_config") or {}
    missing = [name for name in _SAME if name not in text]
    missing += ["backbone_hidden_size"] if "backbone_hidden_size" not in config else []
    if missing:
        raise ValueError(
            f"config: expected the fields of an assistant and its text_config, got none for {', '.join(missing)}"
        )
    for name in ("enable_moe_block", "hidden_size_per_layer_input", "attention_bias", "use_double_wide_mlp"):
        if text.get(name):
            raise ValueError(f"{name}: expected an assistant without it, got {text[name]!r}; no assistant here has it")
    rope = text.get("rope_parameters") or {}
    full, sliding = rope.get(FULL) or {}, rope.get(SLIDING) or {}
    for kind, one, known in ((FULL, full, ("default", "proportional")), (SLIDING, sliding, ("default",))):
        if one.get("rope_type", "default") not in known or one.get("factor", 1.0) != 1.0:
            raise ValueError(f"rope_parameters: expected {' or '.join(known)} positions of {kind}, got {dict(one)}")
    ordered = bool(config.get("use_ordered_embeddings"))
    share = full.get("partial_rotary_factor", 1.0) if full.get("rope_type") == "proportional" else 1.0
    return Gemma4AssistantConfig(
        **{name: text[name] for name in _SAME},
        backbone_hidden_size=config["backbone_hidden_size"],
        global_head_dim=_head_of_full_layers(text),
        sliding_theta=float(sliding.get("rope_theta", 10000.0)),
        full_theta=float(full.get("rope_theta", 1000000.0)),
        full_share=float(share),
        rms_norm_eps=text.get("rms_norm_eps", 1e-6),
        clusters=config.get("num_centroids", 2048) if ordered else 0,
        clusters_read=config.get("centroid_intermediate_top_k", 32),
    )


def _head_of_full_layers(text: Mapping[str, Any]) -> int:
    """`global_head_dim`, or what newer transformers writes of each layer that differs."""
    if text.get("global_head_dim"):
        return text["global_head_dim"]
    first = next((n for n, kind in enumerate(text["layer_types"]) if kind == FULL), 0)
    own = (text.get("per_layer_config") or {}).get(str(first)) or {}
    return own.get("head_dim", text["head_dim"])
