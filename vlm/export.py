"""EAGLE-3 drafters written for serving engines: SGLang, and vLLM in the format of the `speculators` library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.io.files import replacing, write_json_atomic
from mmspec.vlm.drafters.eagle3 import Eagle3

CONFIG, WEIGHTS = "config.json", "model.safetensors"

__all__ = ["export_sglang", "export_speculators"]


def _eagle3_for_export(drafter: object) -> Eagle3:
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


def _eagle3_tensors(drafter: Eagle3, dtype: torch.dtype) -> dict[str, Tensor]:
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


def _layer_config(drafter: Eagle3, max_position_embeddings: int) -> dict[str, Any]:
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


def _write_checkpoint(folder: str | Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    """Writes both files, each complete or not at all, and returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as path:
        save_file(weights, path, metadata={"format": "pt"})
    write_json_atomic(folder / CONFIG, config)
    return folder


def export_sglang(
    drafter: object,
    folder: str | Path,
    *,
    max_position_embeddings: int = 131072,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Writes config.json and model.safetensors that SGLang serves with `--speculative-draft-model-path FOLDER`, and
    returns the folder.

    drafter: an `Eagle3`.   max_position_embeddings: no less than the target's context.
    Layer ids are written less one: SGLang adds one to ids that a config gives, so that v means what layer v puts out.
    Its Llava class hands no such states to a drafter; those of Qwen2.5-VL, Qwen3-VL, Llama 4 and Gemma do.
    Raises ValueError for another kind of drafter, for levels other than three rising ones, and for a drafter whose residual
    starts from the normed state, which SGLang's class does not do.
    """
    drafter = _eagle3_for_export(drafter)
    if drafter.config.norm_before_residual:
        raise ValueError("norm_before_residual: expected False, got True; SGLang starts the residual from the state itself, "
                         "export for vLLM instead")  # fmt: skip
    if max_position_embeddings < 1:
        raise ValueError(f"max_position_embeddings: expected at least 1, got {max_position_embeddings}")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layer_config(drafter, max_position_embeddings),
        "draft_vocab_size": drafter.config.drafted,
        "norm_before_residual": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [level - 1 for level in drafter.levels],
        },
    }
    return _write_checkpoint(folder, config, _eagle3_tensors(drafter, dtype))


SPECULATORS_VERSION = "0.9.0"  # of the format


def export_speculators(
    drafter: object,
    folder: str | Path,
    target_name: str,
    target_architecture: str,
    *,
    speculative_tokens: int = 3,
    max_position_embeddings: int = 131072,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Writes config.json and model.safetensors that vLLM serves with `--model FOLDER`, and returns the folder.

    drafter: an `Eagle3`.   target_name: the target's path or hub id.   target_architecture: its class, such as
    "LlavaForConditionalGeneration".   speculative_tokens: drafted by default.   max_position_embeddings: no less than the
    target's context, which engines else cut to this.
    Layer ids are written as they are: v is transformers' hidden_states[v] there too. norm_before_residual is always
    written, as vLLM takes its absence for True and the library for False.
    vLLM's drafter embeds token ids alone, so that picture slots get the placeholder's embedding with the target's true
    states; this drafter was trained with the merged embeddings, and drafts a little worse there until the text has gone on.
    Raises ValueError for another kind of drafter, for levels other than three rising ones, and for counts below 1.
    """
    drafter = _eagle3_for_export(drafter)
    if min(speculative_tokens, max_position_embeddings) < 1:
        raise ValueError(f"speculative_tokens, max_position_embeddings: expected at least 1, got {speculative_tokens}, "
                         f"{max_position_embeddings}")  # fmt: skip
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": speculative_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": drafter.config.drafted,
        "norm_before_residual": drafter.config.norm_before_residual,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(drafter.levels),
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        "transformer_layer_config": _layer_config(drafter, max_position_embeddings),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target_name, "architectures": [target_architecture]},
        },
    }
    return _write_checkpoint(folder, config, _eagle3_tensors(drafter, dtype))
