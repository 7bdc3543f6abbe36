"""Training of caption encoders: heads read the facts of prompts that are never rendered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..architectures.caption_encoder import FactReader
from .loop import Plan, train

FIRST_SEED = 1 << 28
IGNORE = -100  # a label of nothing
Read = tuple[Tensor, dict[str, float]]
# of a step: the prompts, and the loss of what heads read from them, given the prompts' ids
Lesson = tuple[list[str], Callable[[Tensor, dict[str, Tensor], dict[str, Tensor]], Read]]


def token_loss(logits: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of heads of single tokens, [B, S, size], with labels int64 [B, S]."""
    return sum(F.cross_entropy(logits[name].flatten(0, 1), target.flatten(), ignore_index=IGNORE)
               for name, target in wanted.items())  # fmt: skip


def train_reader(
    reader: FactReader, tokenizer: PreTrainedTokenizerFast, longest: int, lesson: Callable[[int], Lesson], folder: Path,
    steps: int, resume: bool,
) -> FactReader:  # fmt: skip
    """Trains `reader` in place on what `lesson` gives for a step; state and log lie in `folder`.   longest: tokens of a
    prompt."""

    def loss_of(step: int) -> Read:
        texts, judge = lesson(step)
        rows = tokenizer(texts, padding="max_length", max_length=longest, truncation=True, return_tensors="pt")
        return judge(rows["input_ids"], *reader(rows["input_ids"], rows["attention_mask"], step))

    train(reader, loss_of, Plan(steps=steps, lr=2e-3, warmup=50, weight_decay=0.01), folder, "caption encoder", resume)
    return reader.eval()
