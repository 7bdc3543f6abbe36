"""The zoo's hybrid VLM in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def read_hybrid(folder: Path) -> tuple[Any, Any]:
    """The Qwen3.5 model (fp32, eval mode) and processor stored in `folder`."""
    from transformers import PreTrainedTokenizerFast, Qwen3_5ForConditionalGeneration, Qwen3VLProcessor

    from mmspec.core.checkpoints import load_model, load_part

    model = load_model(Qwen3_5ForConditionalGeneration, folder, dtype=torch.float32)
    processor = load_part(Qwen3VLProcessor, folder)
    # the processor's own choice goes by the model's type and splits words as Qwen's files do, whatever tokenizer.json says
    processor.tokenizer = load_part(PreTrainedTokenizerFast, folder)
    return model, processor
