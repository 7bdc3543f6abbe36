"""What an image is conditioned on: class labels and caption features, checked and embedded as a prefix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
            f"prompts: expected class labels for a class-conditional model, got {describe_value(prompts)}; give ints"
        )
    fits = (labels >= 0) & (labels < count)
    if not bool((fits if none is None else fits | (labels == none)).all()):
        other = "" if none is None else f" ({none} for none)"
        raise ValueError(f"prompts: expected labels from 0 to {count - 1}{other}, got {labels.tolist()[:8]}; use these")
    return labels.long()


def _is_label(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def describe_value(value: object) -> str:
    """A value in an error's words."""
    return f"{value!r}" if isinstance(value, str | int | float) else type(value).__name__


def empty_embedding(rows: int, dim: int) -> nn.Embedding:
    """A table that is filled afterwards: the usual start on the meta device would import torch's whole compiler."""
    return nn.Embedding.from_pretrained(torch.empty(rows, dim), freeze=False)


class LabelEmbedder(nn.Module):
    """A row per class and, last and only `with_null`, one for no class.

    null: the label of no class, None where the table has no such row.
    """

    def __init__(self, num_classes: int, dim: int, with_null: bool = True):
        super().__init__()
        self.embedding_table = empty_embedding(num_classes + with_null, dim)
        self.null = num_classes if with_null else None

    def forward(self, labels: Tensor, drop: Tensor | None = None) -> Tensor:
        """labels: int64 [B]; drop: bool [B], rows that get no class. Returns [B, 1, dim].

        Raises ValueError for `drop` without a row for no class.
        """
        if drop is not None:
            if self.null is None:
                raise ValueError("guidance_scale: expected at most 1, since the class table has the rows of num_classes "
                                 f"{self.embedding_table.num_embeddings} and none for no class, got rows without a class; "
                                 "use guidance_scale 1")  # fmt: skip
            labels = labels.masked_fill(drop, self.null)
        return self.embedding_table(labels)[:, None]


class CaptionProjection(nn.Module):
    """Two layers without biases."""

    def __init__(self, before: int, dim: int):
        super().__init__()
        self.fc1 = nn.Linear(before, dim, bias=False)
        self.fc2 = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """Caption features through an MLP. No caption is a fixed random sequence of features, stored but never trained.

    null_rows: of that sequence; the public class always stores 120. A shorter prefix takes the first of them, as the
    public training does, which cuts captions and null features of 120 alike.
    """

    def __init__(self, caption_dim: int, dim: int, null_rows: int):
        super().__init__()
        self.cap_proj = CaptionProjection(caption_dim, dim)
        null = torch.empty(null_rows, caption_dim)
        self.register_buffer("uncond_embedding", null.normal_(std=caption_dim**-0.5))

    def forward(self, features: Tensor, drop: Tensor | None = None) -> Tensor:
        """features: [B, P, caption_dim]; drop: bool [B], rows that get no caption. Returns [B, P, dim].

        Raises ValueError for `drop` when fewer than P rows are stored.
        """
        features = features.to(self.uncond_embedding.dtype)
        if drop is not None:
            length, stored = features.shape[1], len(self.uncond_embedding)
            if stored < length:
                raise ValueError(f"guidance_scale: expected at most 1, since uncond_embedding has {stored} rows and "
                                 f"no caption needs {length}, got rows without one; use guidance_scale 1")  # fmt: skip
            features = torch.where(drop[:, None, None], self.uncond_embedding[:length], features)
        return self.cap_proj(features)


def prefix_bias(mask: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Causal attention over a left-padded prefix and what follows it, as an additive bias [B, 1, length, length].

    mask: bool [B, P], True at real tokens of the prefix. Columns of padding are hidden from every row but their own: the
    diagonal stays visible, so that no row of the softmax is empty.
    """
    rows, prefix = mask.shape
    seen = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
    column = torch.ones(rows, length, dtype=torch.bool, device=mask.device)
    column[:, :prefix] = mask
    itself = torch.eye(length, dtype=torch.bool, device=mask.device)
    visible = (seen & column[:, None]) | itself
    bias = torch.zeros(rows, length, length, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~visible, -torch.inf)[:, None]
