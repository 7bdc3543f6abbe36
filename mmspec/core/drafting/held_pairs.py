"""Held pairs: what the last round accepted, in tensors of one shape, of which the device alone knows how many count."""

from __future__ import annotations

from torch import Tensor

from mmspec.core.draft import Draft, gather_nodes
from mmspec.core.drafting.pending_features import PendingFeatures
from mmspec.core.evidence import Evidence
from mmspec.core.verdict import Verdict, run_of


class HeldPairs:
    """`PendingFeatures` of one round. hidden: [B, W, F]; value: int64 [B, W]; count: int64 [B]."""

    def __init__(self, rows: int, width: int, pairs: PendingFeatures | HeldPairs):
        hidden, value, _ = _latest(pairs)
        self.hidden = hidden.new_zeros(rows, width, *hidden.shape[2:])
        self.value = value.new_zeros(rows, width)
        self.count = value.new_zeros(rows)

    def __len__(self) -> int:
        return 1

    def load(self, pairs: PendingFeatures | HeldPairs) -> None:
        """Takes over those of a request."""
        hidden, value, count = _latest(pairs)
        count = count if isinstance(count, Tensor) else value.new_tensor(count)
        for own, new in ((self.hidden, hidden), (self.value, value)):
            own.zero_()[: new.shape[0], : new.shape[1]] = new
        self.count.zero_()[: len(count)] = count

    def note(self, counts: Tensor, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Notes one round. counts: int64 [B], nodes of every row's path that count."""
        self.hidden = gather_nodes(evidence.hidden, verdict.path)
        self.value, _ = run_of(draft, verdict)
        self.count = counts

    def take(self) -> tuple[Tensor, Tensor, Tensor]:
        """All of them; they stay."""
        return self.hidden, self.value, self.count


def _latest(pairs: PendingFeatures | HeldPairs) -> tuple[Tensor, Tensor, Tensor | list[int]]:
    return pairs.take() if isinstance(pairs, HeldPairs) else pairs.rounds[-1]
