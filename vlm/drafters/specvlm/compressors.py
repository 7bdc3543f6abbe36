"""Compressors of a picture's rows: drop, average or convolve neighbours, read them by learned queries, or drop all."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.vlm.drafters.base.picture_pooling import absorbed_attention


class Compressor(nn.Module):
    """Base of modules that map pictures' rows [K, N, H], of which the first `length` int64 [K] count, to rows [K, M, H].

    count: how many rows a picture gets, int64 [K] of `length`; more than it has for a tiny picture.
    averages: its rows are averages of the picture's rows with fixed weights, so it may run before any linear layer.
    """

    averages: ClassVar[bool] = False


class GroupCompressor(Compressor):
    """Base of those that make one row of `ratio` neighbours; the last group of a picture may be a smaller one."""

    def __init__(self, ratio: int):
        super().__init__()
        self.ratio = ratio

    def count(self, length: Tensor) -> Tensor:
        return (length + self.ratio - 1) // self.ratio

    def groups(self, rows: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Neighbours side by side, [K, M, ratio, H] with zeros beyond a picture's end, and how many there are of each
        group, float [K, M, 1], at least 1."""
        most, ratio = rows.shape[1], self.ratio
        there = torch.arange(most, device=rows.device) < length[:, None]
        rows = torch.where(there[..., None], rows, 0)
        rows = F.pad(rows, (0, 0, 0, -most % ratio)).unflatten(1, (-1, ratio))
        start = torch.arange(rows.shape[1], device=rows.device) * ratio
        present = (length[:, None] - start).clamp(1, ratio)
        return rows, present[..., None].to(rows.dtype)


class PruneCompressor(GroupCompressor):
    """Keeps one row of `ratio`: evenly spaced ones, or in training random ones, in order."""

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
    """A convolution of kernel and stride `ratio`, the average at first.

    A last group of fewer rows is scaled up to a full one, so that it starts as their average too.
    """

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
    """Keeps nothing of a picture: what the drafter knows of it came through the target's states of the text."""

    averages = True

    def count(self, length: Tensor) -> Tensor:
        return torch.zeros_like(length)

    def forward(self, rows: Tensor, length: Tensor) -> Tensor:
        return rows[:, :0]


def is_exploring(module: nn.Module) -> bool:
    """Whether random choices are wanted: in training steps only, so that a draft made in between is the same each time."""
    return module.training and torch.is_grad_enabled()


class ResamplerCompressor(Compressor):
    """One cross-attention layer from learned queries to a picture's rows.

    Keys are of normed rows, values of the rows themselves; value and output projections start as identities, so what
    comes out starts as averages of the rows and is of their scale.
    """

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
