"""Class labels as users give them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def class_labels(prompts: object, count: int, none: int | None) -> Tensor:
    """int64 [B] of one label or several.

    count: labels are 0..count - 1.   none: the label of no class, None where there is no such.
    Raises ValueError for anything else, True and False included.
    """
    single = _is_label(prompts)
    known = single or (isinstance(prompts, Tensor) and prompts.dtype != torch.bool) or (
        isinstance(prompts, Sequence) and all(map(_is_label, prompts))
    )  # fmt: skip
    labels = torch.as_tensor([prompts] if single else prompts) if known else torch.empty(0)
    if labels.dim() != 1 or not labels.numel() or labels.is_floating_point():
        raise ValueError(
            f"prompts: expected class labels for a class-conditional model, got {told(prompts)}; give ints"
        )
    fits = (labels >= 0) & (labels < count)
    if not bool((fits if none is None else fits | (labels == none)).all()):
        other = "" if none is None else f" ({none} for none)"
        raise ValueError(f"prompts: expected labels from 0 to {count - 1}{other}, got {labels.tolist()[:8]}; use these")
    return labels.long()


def _is_label(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def told(value: object) -> str:
    """A value in an error's words."""
    return f"{value!r}" if isinstance(value, str | int | float) else type(value).__name__
