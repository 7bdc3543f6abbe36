"""EAGLE-3 drafters as SafeAILab publishes them, and as `speculators` saves them for vLLM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmspec.io.pretrained import EMBEDDING, ONE_AXIS, SCALED, drafter_sizes, fill_drafter, layer_names, rotary_fields
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.eagle3.config import Eagle3Config, levels_of
from mmspec.vlm.drafters.reduced_vocabulary import check_token_ids

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
        "head.weight": ("lm_head.weight",),
    }
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
    fill_drafter(drafter, state, names, _UNUSED)
    if drafter.head.reduced:
        check_vocabulary(state["d2t"], state["t2d"])
    return drafter


def eagle3_fields(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an Eagle3Config from a published config, without the levels and the embedding."""
    inner = config.get("transformer_layer_config")
    layer = dict(config) if inner is None else dict(inner)
    kind = layer.get("model_type", "llama")
    if kind not in ("llama", "qwen3"):
        raise ValueError(f"model_type: expected a drafter with a 'llama' or 'qwen3' layer, got {kind!r}")
    if config.get("target_hidden_size") not in (None, layer.get("hidden_size")):
        raise ValueError(f"target_hidden_size: expected the drafter's hidden_size {layer.get('hidden_size')}, got "
                         f"{config['target_hidden_size']}")  # fmt: skip
    if kind == "qwen3":
        layer.setdefault("head_dim", _QWEN3_DIM)
    # engines disagree about the norms of later layers in the original's files, so only a single layer is supported there
    count = layer.get("num_hidden_layers", 1) if inner is not None else 1
    plain = {name: value for name, value in layer.items() if not name.startswith("rope_")}
    fields = drafter_sizes(plain if inner is None else {**plain, "num_hidden_layers": 1})
    fields = {name: value for name, value in fields.items() if name not in ("bias", "qkv_bias", "rope_theta")}
    return fields | rotary_fields(layer, _ROTATIONS if inner is not None else ("default", *SCALED)) | {
        "draft_vocab_size": config.get("draft_vocab_size") or fields["vocab_size"],
        "norm_before_residual": bool(config.get("norm_before_residual")),
        "num_hidden_layers": count,
        "windows": layer_windows(layer, count),
        "qk_norm": kind == "qwen3",
        "attention_bias": bool(layer.get("attention_bias")),
        "mlp_bias": bool(layer.get("mlp_bias")) and kind == "llama",  # Qwen3's class has none
        **{name: bool(config.get(name)) for name in ("norm_before_fc", "fc_norm", "norm_output")},
    }  # fmt: skip


def layer_windows(layer: dict[str, Any], count: int) -> tuple[int, ...]:
    """Return the positions that a query of each layer sees, 0 for all, by the config of a Llama or Qwen3 model.

    Qwen3's class reads its window only with `use_sliding_window`. Without `layer_types`, its windows start at layer
    `max_window_layers`. Llama's class has no windows; `speculators` applies them to the layers that `layer_types`
    names.

    Raises:
        ValueError: `layer_types` does not name a kind for each layer, or the window is below 1.
    """
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


@torch.no_grad()
def embedding_rows(parts: Parts) -> Tensor:
    """Return the target's embedding of each token, float [V, H]; some classes scale or norm the rows of their table."""
    weight = parts.embed.weight
    return weight if weight.is_meta else parts.embed(torch.arange(len(weight), device=weight.device))


def published_levels(config: dict[str, Any], target: nn.Module | None) -> tuple[int, ...]:
    """Return the levels that a config names, or the usual levels of the target.

    Raises:
        ValueError: The config names no levels, and there is no target.
    """
    own = config.get("eagle_aux_hidden_state_layer_ids")
    shifted = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if own is not None or shifted is not None:
        return tuple(own if own is not None else (level + 1 for level in shifted))
    if target is None:
        raise ValueError("config: expected eagle_aux_hidden_state_layer_ids, or a target whose usual levels are read, got "
                         "neither; pass the target")  # fmt: skip
    return levels_of(take_apart(target).layers)


def check_vocabulary(d2t: Tensor, t2d: Tensor) -> None:
    """Check that the two tables of a reduced vocabulary agree.

    Raises:
        ValueError: They disagree.
    """
    ids = check_token_ids(d2t.long() + torch.arange(len(d2t), device=d2t.device), len(t2d), len(d2t))
    marked = torch.zeros_like(t2d, dtype=torch.bool).index_fill_(0, ids, True)
    if not torch.equal(marked, t2d.bool()):
        raise ValueError(f"t2d: expected the tokens that d2t leads to, got {int((marked != t2d.bool()).sum())} others")
