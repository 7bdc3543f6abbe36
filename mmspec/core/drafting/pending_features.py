"""Pending features: accepted pairs that a drafter has not read yet, noted after every round, read in one pass before the next
draft."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft, gather_nodes
from mmspec.core.evidence import Evidence
from mmspec.core.verdict import Verdict, run_of

Pairs = tuple[Tensor, Tensor, list[int]]


class PendingFeatures:
    """Per round: hidden states of the accepted path [B, n, F], the values that followed each, int64 [B, n], and how many
    of them count in each row."""

    def __init__(self) -> None:
        self.rounds: list[Pairs] = []

    def __len__(self) -> int:
        return len(self.rounds)

    def note(self, paths: list[list[int]], draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Notes one round. paths: per row, the accepted nodes (root first), empty for a stopped row."""
        counts = [len(path) for path in paths]
        if draft.tree.nodes == 1:
            self.rounds.append((evidence.hidden, verdict.correction[:, None], counts))
            return
        width = max(counts)
        following, _ = run_of(draft, verdict)
        hidden = gather_nodes(evidence.hidden, verdict.path[:, :width])
        self.rounds.append((hidden, following[:, :width], counts))

    def take(self) -> Pairs:
        """All noted pairs as one, every row's own ones first; nothing is pending afterwards."""
        rounds, self.rounds = self.rounds, []
        return rounds[0] if len(rounds) == 1 else _joined(rounds)


def _joined(rounds: list[Pairs]) -> Pairs:
    hidden, ids = torch.cat([r[0] for r in rounds], 1), torch.cat([r[1] for r in rounds], 1)
    there = [[place < counts[row] for _, new, counts in rounds for place in range(new.shape[1])]
             for row in range(ids.shape[0])]  # fmt: skip
    counts = [sum(row) for row in there]
    order = torch.tensor(there, device=ids.device).logical_not().long().argsort(dim=1, stable=True)[:, : max(counts)]
    return gather_nodes(hidden, order), ids.gather(1, order), counts
