"""The condition of an image: class labels and caption features, checked and embedded as a prefix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.io.validation import whole


def class_labels(prompts: object, count: int, none: int | None) -> Tensor:
    """Return labels 0..count - 1 as int64 [B]. `none` is the label for no class; True and False are no labels."""
    values = prompts.tolist() if isinstance(prompts, Tensor | np.ndarray | np.generic) else prompts
    several = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    try:
        labels = [whole("prompts", value) for value in (values if several else [values])]
    except ValueError:
        labels = []
    if not labels:
        raise ValueError(
            f"prompts: expected class labels for a class-conditional model, got {describe_value(values)}; "
            "give whole numbers"
        )
    if not all(0 <= label < count or label == none for label in labels):
        other = "" if none is None else f" ({none} for none)"
        raise ValueError(f"prompts: expected labels from 0 to {count - 1}{other}, got {labels[:8]}; use these")
    return torch.tensor(labels)


def describe_value(value: object) -> str:
    return f"{value!r:.60}" if isinstance(value, str | int | float | Sequence) else type(value).__name__


def empty_embedding(rows: int, dim: int) -> nn.Embedding:
    """Return an embedding table to be filled later. The usual way, the meta device, would import torch's compiler."""
    return nn.Embedding.from_pretrained(torch.empty(rows, dim), freeze=False)


class LabelEmbedder(nn.Module):
    """A class table, with a last row for no class (`null`) where `with_null` is set."""

    def __init__(self, num_classes: int, dim: int, with_null: bool = True):
        super().__init__()
        self.embedding_table = empty_embedding(num_classes + with_null, dim)
        self.null = num_classes if with_null else None

    def forward(self, labels: Tensor, drop: Tensor | None = None) -> Tensor:
        """Return the prefix [B, 1, dim] of labels int64 [B]; rows of `drop` bool [B] get no class."""
        if drop is not None:
            if self.null is None:
                raise ValueError(
                    "guidance_scale: expected at most 1, since the class table of num_classes "
                    f"{self.embedding_table.num_embeddings} has no row for no class, got more; use guidance_scale 1"
                )
            labels = labels.masked_fill(drop, self.null)
        return self.embedding_table(labels)[:, None]


class CaptionProjection(nn.Module):
    def __init__(self, before: int, dim: int):
        super().__init__()
        self.fc1 = nn.Linear(before, dim, bias=False)
        self.fc2 = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """Features through an MLP; a missing caption is `null_rows` fixed random features, stored but untrained. The public
    class stores 120 rows, and its training cuts captions alike: a shorter prefix reads the first of them."""

    def __init__(self, caption_dim: int, dim: int, null_rows: int):
        super().__init__()
        self.cap_proj = CaptionProjection(caption_dim, dim)
        null = torch.empty(null_rows, caption_dim)
        self.register_buffer("uncond_embedding", null.normal_(std=caption_dim**-0.5))

    def forward(self, features: Tensor, drop: Tensor | None = None) -> Tensor:
        """Return the prefix [B, P, dim] of features [B, P, caption_dim]; rows of `drop` bool [B] get no caption."""
        features = features.to(self.uncond_embedding.dtype)
        if drop is not None:
            length, stored = features.shape[1], len(self.uncond_embedding)
            if stored < length:
                raise ValueError(
                    f"guidance_scale: expected at most 1, since uncond_embedding has {stored} of the {length} "
                    "rows for no caption, got more; use guidance_scale 1"
                )
            features = torch.where(drop[:, None, None], self.uncond_embedding[:length], features)
        return self.cap_proj(features)


def prefix_bias(mask: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Return the additive bias [B, 1, length, length] of causal attention behind a prefix with real tokens `mask` bool
    [B, P]. Padding is seen by itself alone, so that no row of the softmax is empty."""
    rows, prefix = mask.shape
    seen = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
    column = torch.ones(rows, length, dtype=torch.bool, device=mask.device)
    column[:, :prefix] = mask
    itself = torch.eye(length, dtype=torch.bool, device=mask.device)
    visible = (seen & column[:, None]) | itself
    bias = torch.zeros(rows, length, length, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~visible, -torch.inf)[:, None]
