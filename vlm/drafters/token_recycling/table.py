"""The memory of Token Recycling: for every token, the target's best successors when it was last looked at."""

from __future__ import annotations

import torch
from torch import Tensor


class RecyclingTable:
    """An adjacency table; hand the same one to several requests to let them share what they saw.

    rows: int32 [R, V + 1, width] once in use, -1 where nothing is known; row V takes what is thrown away.
    width: successors kept per token.   Raises ValueError when it is used with models of different vocabulary or device.
    """

    def __init__(self, width: int = 8):
        if width < 1:
            raise ValueError(f"width: expected at least 1, got {width}")
        self.width = width
        self.rows: Tensor | None = None

    def reserve(self, rows: int, vocab_size: int, device: torch.device) -> RecyclingTable:
        """Makes the table on first use: `rows` 1 is shared by all rows of a batch, else one each."""
        if self.rows is None:
            self.rows = torch.full((rows, vocab_size + 1, self.width), -1, dtype=torch.int32, device=device)
        have = (self.rows.shape[1] - 1, self.rows.device)
        if have != (vocab_size, torch.device(device)):
            raise ValueError(f"table: expected vocabulary {vocab_size} on {device}, got {have[0]} on {have[1]}; "
                             "use one table per model")  # fmt: skip
        return self

    def look(self, token: Tensor, rank: Tensor) -> Tensor:
        """The successor of rank `rank` int64 [n] of `token` int64 [B, n], int64 [B, n], -1 where none is known."""
        return self.rows[self._row(token), token, rank].long()

    def store(self, token: Tensor, successors: Tensor, usable: Tensor, priority: Tensor) -> None:
        """Overwrites the rows of `token` int64 [B, n] with `successors` int [B, n, width] where `usable` bool [B, n].

        Where a token occurs more than once, the one of the highest `priority` int64 [B, n] (all different) is kept.
        """
        if self.rows.shape[0] == 1:
            token, usable, priority = (x.reshape(1, -1) for x in (token, usable, priority))
            successors = successors.reshape(1, -1, self.width)
        rival = (token[:, :, None] == token[:, None, :]) & usable[:, None, :]
        beaten = (rival & (priority[:, None, :] > priority[:, :, None])).any(-1)
        slot = torch.where(usable & ~beaten, token, self.rows.shape[1] - 1)
        self.rows[self._row(slot), slot] = successors.int()

    def _row(self, token: Tensor) -> Tensor:
        return torch.arange(self.rows.shape[0], device=token.device)[:, None]
