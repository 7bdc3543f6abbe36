"""What the engines' EAGLE-3 files have in common: tensors under the names they read, and the layer's config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.core.files import replacing, write_json_atomic
from mmspec.vlm.drafters.eagle3 import Eagle3

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def check(drafter: object) -> Eagle3:
    """The drafter itself.

    Raises ValueError for a drafter of another method, and for levels the engines cannot give: they take three states, in
    the order of the layers, each once, and none in front of the first layer.
    """
    if not isinstance(drafter, Eagle3):
        raise ValueError(
            f"drafter: expected an EAGLE-3 drafter, the only kind engines read, got {type(drafter).__name__}"
        )
    levels = drafter.levels
    if len(levels) != 3 or levels[0] < 1 or not levels[0] < levels[1] < levels[2]:
        raise ValueError(f"levels: expected three rising layers from 1, got {levels}; train the drafter on such levels")
    return drafter


def tensors(drafter: Eagle3, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights in `dtype` under the engines' names, [out, in] as in torch. d2t is int64 offsets, t2d bool; both are absent
    where no token is left out. The embedding is the target's and is not written."""
    layer, attention, mlp = drafter.layer, "layers.0.self_attn.", "layers.0.mlp."
    config = layer.config
    rows = [heads * config.dim for heads in (config.num_attention_heads, config.groups, config.groups)]
    q, k, v = layer.qkv.weight.split(rows)
    gate, up = layer.gate_up.weight.chunk(2)
    weights = {
        "fc.weight": drafter.fc.weight,
        f"{attention}q_proj.weight": q,
        f"{attention}k_proj.weight": k,
        f"{attention}v_proj.weight": v,
        f"{attention}o_proj.weight": layer.out.weight,
        f"{mlp}gate_proj.weight": gate,
        f"{mlp}up_proj.weight": up,
        f"{mlp}down_proj.weight": layer.down.weight,
        "layers.0.input_layernorm.weight": drafter.embed_norm.weight,
        "layers.0.hidden_norm.weight": drafter.state_norm.weight,
        "layers.0.post_attention_layernorm.weight": layer.norm.weight,
        "norm.weight": drafter.norm.weight,
        "lm_head.weight": drafter.head.weight,
    }
    # clones: slices of one weight share its storage, which the file format refuses
    made = {name: weight.detach().to("cpu", dtype, copy=True).contiguous() for name, weight in weights.items()}
    if drafter.head.reduced:
        made |= {"d2t": drafter.head.d2t.cpu(), "t2d": drafter.head.t2d.cpu()}
    return made


def layer_config(drafter: Eagle3, max_position_embeddings: int) -> dict[str, Any]:
    """The layer as a Llama config. vocab_size is the target's. rope_theta is written where old and new readers look."""
    config = drafter.config
    layer = config.layer()
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": layer.groups,
        "head_dim": layer.dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


def write(folder: str | Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    """Writes both files, each complete or not at all, and returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as path:
        save_file(weights, path, metadata={"format": "pt"})
    write_json_atomic(folder / CONFIG, config)
    return folder
