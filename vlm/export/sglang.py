"""EAGLE-3 drafters for SGLang."""

from __future__ import annotations

from pathlib import Path

import torch

from mmspec.vlm.export.eagle3_files import check, layer_config, tensors, write


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
    drafter = check(drafter)
    if drafter.config.norm_before_residual:
        raise ValueError("norm_before_residual: expected False, got True; SGLang starts the residual from the state itself, "
                         "export for vLLM instead")  # fmt: skip
    if max_position_embeddings < 1:
        raise ValueError(f"max_position_embeddings: expected at least 1, got {max_position_embeddings}")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_config(drafter, max_position_embeddings),
        "draft_vocab_size": drafter.config.drafted,
        "norm_before_residual": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [level - 1 for level in drafter.levels],
        },
    }
    return write(folder, config, tensors(drafter, dtype))
