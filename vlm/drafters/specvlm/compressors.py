"""Compressors of a picture's rows: drop, average or convolve neighbours, read them by learned queries, or drop all."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.vlm.drafters.base.picture_pooling import absorbed_attention


class Compressor(nn.Module):
    """Base of modules that compress pictures: from rows [K, N, H] with `length` int64 [K] in use to rows [K, M, H].
    `count` gives a picture's number of rows, int64 [K] from `length`; it may exceed `length` for a tiny picture."""

    averages: ClassVar[bool] = False  # a fixed weighted average of rows, which may precede any linear layer


class GroupCompressor(Compressor):
    """Base of compressors with a row per `ratio` neighbours; the last group of a picture may be smaller."""

    def __init__(self, ratio: int):
        super().__init__()
        self.ratio = ratio

    def count(self, length: Tensor) -> Tensor:
        return (length + self.ratio - 1) // self.ratio

    def groups(self, rows: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Return groups of neighbours, [K, M, ratio, H], with zeros at the end, and their sizes, [K, M, 1], at least 1."""
        most, ratio = rows.shape[1], self.ratio
        there = torch.arange(most, device=rows.device) < length[:, None]
        rows = torch.where(there[..., None], rows, 0)
        rows = F.pad(rows, (0, 0, 0, -most % ratio)).unflatten(1, (-1, ratio))
        start = torch.arange(rows.shape[1], device=rows.device) * ratio
        present = (length[:, None] - start).clamp(1, ratio)
        return rows, present[..., None].to(rows.dtype)


class PruneCompressor(GroupCompressor):
    """Keeps a row per `ratio` rows: evenly spaced rows, or in training random rows, in order."""

    averages = True

    def forward(self, rows: Tensor, length: Tensor) -> Tensor:
        most, count = rows.shape[1], self.count(length)[:, None]
        column = torch.arange(-(-most // self.ratio), device=rows.device)
        if is_exploring(self):
            there = torch.arange(most, device=rows.device) < length[:, None]
            rank = torch.rand(there.shape, device=rows.device).masked_fill(~there, 2.0).argsort(1).argsort(1)
            index = (rank >= count).long().argsort(dim=1, stable=True)[:, : len(column)]
        else:
            # the middle of each of `count` equal parts
            index = (((2 * column + 1) * length[:, None]) // (2 * count)).clamp(max=most - 1)
        return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[-1]))


class PoolCompressor(GroupCompressor):
    """The average of `ratio` neighbours."""

    averages = True

    def forward(self, rows: Tensor, length: Tensor) -> Tensor:
        groups, present = self.groups(rows, length)
        return groups.sum(2) / present


class ConvCompressor(GroupCompressor):
    """A convolution of kernel and stride `ratio`, initially the average. A smaller last group is scaled up to a full
    group, so that it starts as an average too."""

    def __init__(self, width: int, ratio: int):
        super().__init__(ratio)
        self.mix = nn.Linear(ratio * width, width)
        nn.init.zeros_(self.mix.bias)
        with torch.no_grad():
            self.mix.weight.copy_(torch.eye(width).repeat(1, ratio) / ratio)

    def forward(self, rows: Tensor, length: Tensor) -> Tensor:
        groups, present = self.groups(rows, length)
        return self.mix(groups.flatten(2) * (self.ratio / present))


class TextOnlyCompressor(Compressor):
    """Keeps no row of a picture: the drafter knows it only through the target's states of the text."""

    averages = True

    def count(self, length: Tensor) -> Tensor:
        return torch.zeros_like(length)

    def forward(self, rows: Tensor, length: Tensor) -> Tensor:
        return rows[:, :0]


def is_exploring(module: nn.Module) -> bool:
    """Return whether random choices are wanted: in training steps only, so that drafts in between are reproducible."""
    return module.training and torch.is_grad_enabled()


class ResamplerCompressor(Compressor):
    """Cross-attention from learned queries to a picture's rows: keys of normed rows, values of the rows themselves.
    Value and output projections start as identities, so outputs start as averages of the rows, at their scale."""

    def __init__(self, width: int, heads: int, dim: int, queries: int, eps: float):
        super().__init__()
        self.heads, self.queries = heads, queries
        self.query = nn.Parameter(torch.randn(queries, heads * dim))
        self.norm = nn.RMSNorm(width, eps=eps)
        self.key = nn.Linear(width, heads * dim, bias=False)
        self.value = nn.Linear(width, heads * dim, bias=False)
        self.out = nn.Linear(heads * dim, width, bias=False)
        nn.init.eye_(self.value.weight)
        nn.init.eye_(self.out.weight)

    def count(self, length: Tensor) -> Tensor:
        return torch.full_like(length, self.queries)

    def forward(self, rows: Tensor, length: Tensor) -> Tensor:
        there = torch.arange(rows.shape[1], device=rows.device) < length[:, None]
        query = self.query.unflatten(-1, (self.heads, -1))
        return self.out(absorbed_attention(query, self.norm(rows), rows, self.key.weight, self.value, there))
