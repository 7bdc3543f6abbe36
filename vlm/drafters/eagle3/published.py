"""EAGLE-3 drafters as SafeAILab publishes them, and as `speculators` saves them for vLLM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmspec.io.pretrained import EMBEDDING, drafter_sizes, layer_names
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.eagle3.config import Eagle3Config, levels_of
from mmspec.vlm.drafters.reduced_vocabulary import check_token_ids

# of `speculators`: what it keeps for training alone
UNUSED_TENSORS = (EMBEDDING, "verifier_lm_head.weight", "verifier_norm.weight")


def tensor_names(state: dict[str, Tensor], config: Eagle3Config) -> dict[str, tuple[str, ...]]:
    """Our names of the weights, and the published ones."""
    prefix = "midlayer." if any(name.startswith("midlayer.") for name in state) else "layers.0."
    names = {
        **layer_names(prefix),
        "embed_norm.weight": (f"{prefix}input_layernorm.weight",),
        "state_norm.weight": (f"{prefix}hidden_norm.weight",),
        "fc.weight": ("fc.weight",),
        "norm.weight": ("norm.weight",),
        "head.weight": ("lm_head.weight",),
    }
    if config.drafted < config.vocab_size:
        names |= {"head.d2t": ("d2t",), "head.t2d": ("t2d",)}
    return names


def eagle3_fields(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of an Eagle3Config, without its levels."""
    inner = config.get("transformer_layer_config")
    for name in ("norm_before_fc", "fc_norm", "norm_output"):
        if config.get(name):
            raise ValueError(f"{name}: expected a drafter with the norms of EAGLE-3 alone, got {config[name]!r}")
    layer = dict(config) if inner is None else dict(inner)
    if layer.get("model_type", "llama") != "llama":
        raise ValueError(f"model_type: expected a drafter with a 'llama' layer, got {layer['model_type']!r}")
    if layer.get("attention_bias") or layer.get("mlp_bias"):
        raise ValueError("attention_bias, mlp_bias: expected a drafter without them, got a config with one")
    if config.get("target_hidden_size") not in (None, layer.get("hidden_size")):
        raise ValueError(f"target_hidden_size: expected the drafter's hidden_size {layer.get('hidden_size')}, got "
                         f"{config['target_hidden_size']}")  # fmt: skip
    fields = drafter_sizes(layer)
    fields = {name: value for name, value in fields.items() if name not in ("bias", "qkv_bias")}
    count = config.get("draft_vocab_size") or fields["vocab_size"]
    return {**fields, "draft_vocab_size": count, "norm_before_residual": bool(config.get("norm_before_residual"))}


def published_levels(config: dict[str, Any], target: nn.Module | None) -> tuple[int, ...]:
    """The levels that a config names, or the usual ones of the target.   Raises ValueError for neither."""
    own = config.get("eagle_aux_hidden_state_layer_ids")
    shifted = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if own is not None or shifted is not None:
        return tuple(own if own is not None else (level + 1 for level in shifted))
    if target is None:
        raise ValueError("config: expected eagle_aux_hidden_state_layer_ids or a target to take the usual levels of, "
                         "got neither; give the target")  # fmt: skip
    return levels_of(take_apart(target).layers)


def check_vocabulary(d2t: Tensor, t2d: Tensor) -> None:
    """Raises ValueError where the two tables of a reduced vocabulary disagree."""
    ids = check_token_ids(d2t.long() + torch.arange(len(d2t), device=d2t.device), len(t2d), len(d2t))
    marked = torch.zeros_like(t2d, dtype=torch.bool).index_fill_(0, ids, True)
    if not torch.equal(marked, t2d.bool()):
        raise ValueError(f"t2d: expected the tokens that d2t leads to, got {int((marked != t2d.bool()).sum())} others")
