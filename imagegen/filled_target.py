"""Targets that fill a fixed number of values per row: values, progress, and the commit of a mask verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.core.round.batch_target import BatchTarget
from mmspec.core.round.draft import Draft, Evidence, Verdict

# listener(row, filled) runs for each row after every round that added values to it
Listener = Callable[[int, int], None]


class FilledTarget(BatchTarget):
    """Base of targets that fill `values` [B, total, ...], 0 at empty places, from roots `pending` [B, ...]."""

    not_finite: str  # the reason that a failed row reports

    def __init__(self, batch: int, total: int, like: Tensor, listener: Listener | None):
        """Start with empty rows; the value `like` has the shape, dtype and device of all values."""
        super().__init__(batch)
        self.total, self.listener, self.device = total, listener, like.device
        # the spare last column takes the values that have no place
        self._values = like.new_zeros(batch, total + 1, *like.shape)
        self.values = self._values[:, :-1]
        self.filled = [0] * batch
        self.pending = torch.zeros_like(self._values[:, 0])

    @property
    def emitted(self) -> list[int]:
        return self.filled

    @property
    def room(self) -> list[int]:
        return [self.total - filled for filled in self.filled]

    def put(self, place: Tensor, value: Tensor) -> None:
        """Store values [B, N, ...] at places int64 [B, N]; the place `total` is the spare column."""
        self._values.scatter_(1, place.view(*place.shape, *[1] * (value.dim() - 2)).expand_as(value), value)

    def _count(self, row: int, filled: int, failed: bool) -> None:
        self.filled[row] = filled
        self.live[row] = filled < self.total
        if failed:
            self.fail(row, self.not_finite, f"{filled} of {self.total} values")
        if self.listener is not None:
            self.listener(row, filled)


class MaskFilledTarget(FilledTarget):
    """Base of targets filled in any order, given by `Draft.index`; `known` bool [B, total] places are final."""

    verdicts = ("mask",)

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self._known = torch.zeros(self._values.shape[:2], dtype=torch.bool, device=self.device)
        self.known = self._known[:, :-1]

    def put(self, place: Tensor, value: Tensor) -> None:
        super().put(place, value)
        self._known.scatter_(1, place, True)

    def settle(self, draft: Draft, verdict: Verdict, runs: Tensor) -> Tensor:
        """Store a verdict in the rows `runs` bool [B]; return int64 [B], the accepted draft values of each."""
        raise NotImplementedError

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        if verdict.kind != "mask":
            raise ValueError(
                f"rule: expected a rule with mask verdicts, got a {verdict.kind!r}; leave the rule to the decoding"
            )
        live = torch.tensor(self.live, device=self.device)
        failed = torch.zeros_like(live)
        if evidence.bad is not None:
            failed = (evidence.bad & (draft.index < self.total)).any(1)
        accepted = self.settle(draft, verdict, live & ~failed)
        # the only transfer to the host in a round
        report = torch.stack((self.known.sum(1), accepted, failed.long()), 1).tolist()
        counts = [count if live else None for (_, count, _), live in zip(report, self.live, strict=True)]
        for row, (filled, _, bad) in enumerate(report):
            if self.live[row]:
                self._count(row, filled, bool(bad))
        return counts
