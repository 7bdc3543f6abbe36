"""The prompts that adapters support, and ragged rows of token ids as a left-padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmspec.io.validation import plain

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class TokenPrompts:
    """The condition of a batch, without padding."""

    cond: tuple[Tensor, ...]  # int64 [P] per image, up to the begin of the image
    uncond: tuple[Tensor, ...] | None = None  # None for a model without that branch


def prompt_texts(prompts: object) -> list[str] | None:
    """Return the texts of a text or a sequence of texts; None for other prompts."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Sequence) and prompts and all(isinstance(text, str) for text in prompts):
        return list(prompts)
    return None


def token_rows(prompts: object, mask: object = None) -> tuple[Tensor, ...]:
    """Return ids int64 [P] per row of int64 [B, P] or [P] or a sequence of rows; `mask` [B, P] is 0 at padding."""
    prompts = torch.as_tensor(prompts) if isinstance(prompts, np.ndarray) else prompts
    if isinstance(prompts, Tensor) and mask is not None:
        rows = [ids[real.bool()] for ids, real in zip(prompts, torch.as_tensor(mask), strict=True)]
    else:
        rows = _split_rows(prompts)
    if not rows or any(row.numel() == 0 or row.dim() != 1 or row.dtype not in _WHOLE for row in rows):
        raise ValueError(
            "prompts: expected texts, token ids or a processor's output, got a row without ids; "
            "give every image a prompt"
        )
    return tuple(row.long().cpu() for row in rows)


def _split_rows(prompts: object) -> list[Tensor]:
    if isinstance(prompts, Mapping) or not isinstance(prompts, (Tensor, Sequence)) or len(prompts) == 0:
        raise ValueError(f"prompts: expected texts, token ids or a processor's output, got {type(prompts).__name__}")
    if isinstance(prompts, Tensor):
        return list(prompts) if prompts.dim() == 2 else [prompts]
    prompts = [plain(row) for row in prompts]
    if all(isinstance(row, int) for row in prompts):
        return [torch.tensor(prompts)]
    return [torch.as_tensor(row) for row in prompts]


def left_padded(rows: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor, bool]:
    """Return ids int64 [R, P] padded with 0 on the left, real bool [R, P], and whether any row is padded."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for place, row in zip(ids, rows, strict=True):
        place[longest - len(row) :] = row
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(longest) >= longest - lengths[:, None]
    return ids.to(device), real.to(device), min(map(len, rows)) < longest
