"""Which members of a fixed set a training step takes."""

from __future__ import annotations

import torch


def turn_of(count: int, size: int, turn: int) -> list[int]:
    """The members of a turn: `size` of `count`, every epoch in an order of its own."""
    epoch, place = divmod(turn, max(count // size, 1))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    return order[place * size : (place + 1) * size].tolist()
