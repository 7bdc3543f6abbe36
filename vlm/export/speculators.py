"""EAGLE-3 drafters for vLLM, in the format of the `speculators` library."""

from __future__ import annotations

from pathlib import Path

import torch

from mmspec.vlm.export.eagle3_files import check, layer_config, tensors, write

VERSION = "0.9.0"  # of the format


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
    drafter = check(drafter)
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
        "speculators_version": VERSION,
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
        "transformer_layer_config": layer_config(drafter, max_position_embeddings),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target_name, "architectures": [target_architecture]},
        },
    }
    return write(folder, config, tensors(drafter, dtype))
