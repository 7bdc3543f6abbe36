"""Targets whose values come in raster order: what a round leaves of them, whether they are codes or vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.core.batch_target import BatchTarget
from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.pool import SlotPool
from mmspec.core.verdict import Verdict, run_of

Listener = Callable[[int, int], None]


class RasterTarget(BatchTarget):
    """Base of targets that fill their images value by value; a domain adds its passes.

    like: a value, by its shape, dtype and device.   cache: what the passes keep.   not_finite: why a row fails.
    values: [B, total, ...], what has been generated.   filled: per row, how many of them.
    last: int64 [B], index of the root among the row's values, -1 before the first.   pending: [B, ...], the root's value.
    listener(row, filled): called for each row after every round that added values to it.
    """

    not_finite: str

    def __init__(self, batch: int, total: int, like: Tensor, cache: SlotPool, listener: Listener | None):
        super().__init__(batch)
        self.total, self.cache, self.listener, self.device = total, cache, listener, like.device
        # one column more than there are values takes what a run has beyond the end
        self._stored = like.new_zeros(batch, total + 1, *like.shape)
        self.values = self._stored[:, :-1]
        self.filled = [0] * batch
        self.pending = torch.zeros_like(self._stored[:, 0])
        self.last = torch.full((batch,), -1, device=like.device)

    @property
    def emitted(self) -> list[int]:
        return self.filled

    @property
    def room(self) -> list[int]:
        return [self.total - filled for filled in self.filled]

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        accepted = self.take_paths(verdict, evidence.bad)
        self._store(run_of(draft, verdict)[0])
        self.cache.commit(self.paths)
        self.last = self.last + self.steps
        self.pending = verdict.correction
        return accepted

    def take(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        """Counts a live row's new values, see `BatchTarget.take`; they are stored on the device."""
        count = min(depth + (not failure), self.total - self.filled[row])
        self._count(row, self.filled[row] + count, bool(failure))
        return min(depth, count)

    def _count(self, row: int, filled: int, failed: bool) -> None:
        """Notes how far a live row has come, and whether it goes on."""
        self.filled[row] = filled
        self.live[row] = filled < self.total
        if failed:
            self.fail(row, self.not_finite, f"{filled} of {self.total} values")
        if self.listener is not None:
            self.listener(row, filled)

    def _store(self, run: Tensor) -> None:
        """run: [B, D + 1, ...], the values behind the root; those beyond a row's end go to the spare column."""
        place = self.last[:, None] + 1 + torch.arange(run.shape[1], device=self.device)
        inside = place < torch.tensor(self.filled, device=self.device)[:, None]
        place = torch.where(inside, place, self.total)
        self._stored.scatter_(1, place.view(*place.shape, *[1] * (run.dim() - 2)).expand_as(run), run)
