"""Text prompts for any class: one row, and a ragged left-padded batch; inputs of `generate`."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.vlm.classes.shrink import PAD, WORDS

LENGTHS = {"one": (10,), "ragged": (12, 5, 9, 3), "long": (21,)}


def text_prompt(kind: str) -> dict[str, Tensor]:
    """One of `LENGTHS`. The window and the RoPE switch of the variants lie behind the short ones, inside the long one."""
    rng = torch.Generator().manual_seed(sum(map(ord, kind)))
    return padded([torch.randint(*WORDS, (n,), generator=rng).tolist() for n in LENGTHS[kind]])


def padded(rows: list[list[int]]) -> dict[str, Tensor]:
    """Rows of ids, left padded, with their mask."""
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[PAD] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
    }
