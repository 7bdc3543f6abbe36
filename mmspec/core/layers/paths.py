"""Which nodes of a draft a commit keeps, and what layers with states ask of them: worked out once for all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Kept:
    """A commit's nodes as tensors. last: int64 [B], each row's last node, 0 where it keeps none.   off: bool [B, 1, N, 1], the
    nodes that a row does not keep.   still: bool [B, 1, 1, 1], rows that keep none."""

    last: Tensor
    off: Tensor
    still: Tensor


class Paths:
    """rows: per row the nodes kept, ascending and root first; empty for a row that stays as it is.

    leading: how many nodes every row keeps, where all keep as many and the first ones; else None.
    """

    def __init__(self, rows: list[list[int]]):
        self.rows = rows
        first, count = rows[0], len(rows[0])
        self.leading = count if first == list(range(count)) and all(nodes == first for nodes in rows) else None
        self._kept: dict[tuple[int, torch.device], Kept] = {}
        self._windows: dict[tuple[int, torch.device], Tensor] = {}

    def kept(self, nodes: int, device: torch.device) -> Kept:
        """These of `nodes` nodes."""
        if (nodes, device) not in self._kept:
            off = torch.ones(len(self.rows), nodes, dtype=torch.bool)
            for row, path in enumerate(self.rows):
                off[row, path] = False
            last = torch.tensor([path[-1] if path else 0 for path in self.rows])
            still = torch.tensor([not path for path in self.rows])
            made = Kept(last.to(device), off.to(device)[:, None, :, None], still.to(device)[:, None, None, None])
            self._kept[nodes, device] = made
        return self._kept[nodes, device]

    def windows(self, held: int, device: torch.device) -> Tensor:
        """Which columns of [committed window of `held` columns | nodes] are the window behind the paths, int64 [B, held]."""
        if (held, device) not in self._windows:
            kept = [(list(range(held)) + [held + node for node in path])[-held:] for path in self.rows]
            self._windows[held, device] = torch.tensor(kept, device=device)
        return self._windows[held, device]
