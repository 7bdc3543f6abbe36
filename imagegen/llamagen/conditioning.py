"""What the image is conditioned on: a class, or the features of a caption. Both become a prefix of embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def empty_embedding(rows: int, dim: int) -> nn.Embedding:
    """A table that is filled afterwards: the usual start on the meta device would import torch's whole compiler."""
    return nn.Embedding.from_pretrained(torch.empty(rows, dim), freeze=False)


class LabelEmbedder(nn.Module):
    """A row per class and, last, one for no class."""

    def __init__(self, num_classes: int, dim: int):
        super().__init__()
        self.embedding_table = empty_embedding(num_classes + 1, dim)

    @property
    def null(self) -> int:
        """The label of no class."""
        return self.embedding_table.num_embeddings - 1

    def forward(self, labels: Tensor, drop: Tensor | None = None) -> Tensor:
        """labels: int64 [B]; drop: bool [B], rows that get no class. Returns [B, 1, dim]."""
        if drop is not None:
            labels = labels.masked_fill(drop, self.null)
        return self.embedding_table(labels)[:, None]


class CaptionMLP(nn.Module):
    """Two layers without biases."""

    def __init__(self, before: int, dim: int):
        super().__init__()
        self.fc1 = nn.Linear(before, dim, bias=False)
        self.fc2 = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """Caption features through an MLP. No caption is a fixed random sequence of features, stored but never trained.

    The public class always stores 120 rows of it, and then only runs with a prefix of 120; here it has as many rows as
    the prefix.
    """

    def __init__(self, caption_dim: int, dim: int, length: int):
        super().__init__()
        self.cap_proj = CaptionMLP(caption_dim, dim)
        self.register_buffer("uncond_embedding", torch.randn(length, caption_dim) / caption_dim**0.5)

    def forward(self, features: Tensor, drop: Tensor | None = None) -> Tensor:
        """features: [B, P, caption_dim]; drop: bool [B], rows that get no caption. Returns [B, P, dim]."""
        features = features.to(self.uncond_embedding.dtype)
        if drop is not None:
            features = torch.where(drop[:, None, None], self.uncond_embedding, features)
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
