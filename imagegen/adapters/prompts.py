"""What a user may hand an adapter as prompts, and ragged rows of token ids as one left-padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenPrompts:
    """The condition of a batch, without padding.

    cond: per image, int64 [P] token ids up to where the image begins.   uncond: their unconditional counterparts, None
    for a model without them.
    """

    cond: tuple[Tensor, ...]
    uncond: tuple[Tensor, ...] | None = None


def prompt_texts(prompts: object) -> list[str] | None:
    """The texts, where prompts are a text or several; else None."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Sequence) and prompts and all(isinstance(one, str) for one in prompts):
        return list(prompts)
    return None


def token_rows(prompts: object, mask: object = None) -> tuple[Tensor, ...]:
    """Token ids int64 [P] per row, padding taken out.

    prompts: int64 [B, P] or [P], or a sequence of such rows.   mask: [B, P], 0 where a tensor of rows is padding.
    Raises ValueError for anything else and for an empty prompt.
    """
    if isinstance(prompts, Tensor) and mask is not None:
        rows = [ids[kept.bool()] for ids, kept in zip(prompts, torch.as_tensor(mask), strict=True)]
    else:
        rows = _split_rows(prompts)
    if not rows or any(row.numel() == 0 or row.dim() != 1 or row.is_floating_point() for row in rows):
        raise ValueError("prompts: expected texts, token ids or what a processor returned, got no ids in some row; "
                         "give every image a prompt")  # fmt: skip
    return tuple(row.long().cpu() for row in rows)


def _split_rows(prompts: object) -> list[Tensor]:
    if isinstance(prompts, Mapping) or not isinstance(prompts, (Tensor, Sequence)) or len(prompts) == 0:
        raise ValueError(
            f"prompts: expected texts, token ids or what a processor returned, got {type(prompts).__name__}"
        )
    if isinstance(prompts, Tensor):
        return list(prompts) if prompts.dim() == 2 else [prompts]
    if all(isinstance(one, int) for one in prompts):
        return [torch.tensor(prompts)]
    return [torch.as_tensor(one) for one in prompts]


def left_padded(rows: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor, bool]:
    """Rows of token ids as one batch whose last column holds every row's last id.

    Returns ids int64 [R, P] (0 in the padding), real bool [R, P], and whether anything is padded.
    """
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for place, row in zip(ids, rows, strict=True):
        place[longest - len(row) :] = row
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(longest) >= longest - lengths[:, None]
    return ids.to(device), real.to(device), min(map(len, rows)) < longest
