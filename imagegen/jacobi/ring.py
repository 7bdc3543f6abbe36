"""Rows that belong to positions of the image, kept for the last few of them."""

from __future__ import annotations

import torch
from torch import Tensor


class Ring:
    """table: float [B, slots + 1, V]; position i lies in slot i mod slots, and the extra slot holds `spare` for ever.

    A position is readable until one `slots` further on is written. Writing a position again replaces its row.
    """

    def __init__(self, slots: int, batch: int, spare: Tensor):
        self.slots = slots
        self.table = spare.expand(batch, slots + 1, -1).clone()

    def write(self, position: Tensor, rows: Tensor) -> None:
        """position: int64 [B, K], fewer than `slots` different ones a row; rows: float [B, K, V]."""
        batch = torch.arange(len(position), device=position.device)[:, None]
        self.table[batch, position % self.slots] = rows

    def read(self, position: Tensor) -> Tensor:
        """float [B, K, V] at position int64 [B, K]; the spare row where it is negative."""
        slot = torch.where(position < 0, self.slots, position % self.slots)
        batch = torch.arange(len(position), device=position.device)[:, None]
        return self.table[batch, slot]
