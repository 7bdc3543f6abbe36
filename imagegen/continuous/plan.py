"""Which positions the next few autoregressive steps of plain decoding decide."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.imagegen.continuous.target import MaskedTarget


@dataclass(frozen=True, slots=True)
class Plan:
    """position, step: int64 [B, N], the positions in the order in which they are revealed, L past a row's end, and which of
    the coming steps decides each, -1 past the end.   counts: per step and row, how many.
    Rows fill columns from the left, so that a column's meaning does not depend on the other rows.
    """

    position: Tensor
    step: Tensor
    counts: list[list[int]]

    def columns(self, step: int) -> tuple[Tensor, Tensor]:
        """(int64 [B, n] columns of the positions of a step, bool [B, n] whether there is one)."""
        first = torch.tensor([sum(row[:step]) for row in zip(*self.counts, strict=True)], device=self.position.device)
        count = torch.tensor(self.counts[step], device=self.position.device)
        ahead = torch.arange(max(self.counts[step]), device=self.position.device)
        there = ahead < count[:, None]
        return (first[:, None] + ahead).clamp(max=self.position.shape[1] - 1), there


def plan(target: MaskedTarget, steps: int) -> Plan:
    """The next `steps` steps of every live row, fewer where the image ends."""
    counts, left = [], [target.total - n if live else 0 for n, live in zip(target.filled, target.live, strict=True)]
    while any(left) and len(counts) < steps:
        ends = [next((step.first for step in target.steps if step.first < rest), rest) for rest in left]
        counts.append([rest - end for rest, end in zip(left, ends, strict=True)])
        left = ends
    total = torch.tensor([sum(row) for row in zip(*counts, strict=True)], device=target.device)
    order = target.rank.masked_fill(target.known, -1).argsort(dim=-1, descending=True, stable=True)
    column = torch.arange(int(max(map(sum, zip(*counts, strict=True)))), device=target.device)
    there = column < total[:, None]
    position = torch.where(there, order[:, : len(column)], target.total)
    bounds = torch.tensor(counts, device=target.device).T.cumsum(1)  # [B, S]
    step = (column >= bounds[:, :, None]).sum(1)
    return Plan(position, torch.where(there, step, -1), counts)
