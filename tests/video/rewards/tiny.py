"""Small CLIP models of both libraries, and a tokenizer of few words."""

from __future__ import annotations

import torch
from torch import Tensor

OPEN_CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 12, "vocab_size": 60, "width": 24, "heads": 2, "layers": 2},
}
TRANSFORMERS = {
    "projection_dim": 16,
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 8,
        "image_size": 32,
        "hidden_act": "gelu",
    },
    "text_config": {
        "hidden_size": 24,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 60,
        "max_position_embeddings": 12,
        "hidden_act": "gelu",
        "eos_token_id": 59,
        "bos_token_id": 58,
        "pad_token_id": 0,
    },
}


def words(prompts: list[str]) -> Tensor:
    """Ids of a small vocabulary: start 58, end 59, padded with 0 as open_clip pads."""
    ids = torch.zeros(len(prompts), 12, dtype=torch.long)
    for row, prompt in zip(ids, prompts, strict=True):
        read = [58, *(sum(map(ord, word)) % 57 + 1 for word in prompt.split()[:10]), 59]
        row[: len(read)] = torch.tensor(read)
    return ids
