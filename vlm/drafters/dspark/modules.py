"""What DSpark adds to DFlash: a correction of a row's scores by the token before it, and a head that predicts acceptance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.placement import alongside

HEADS = ("vanilla", "gated", "rnn")


class MarkovHead(nn.Module):
    """Scores every token by the one before it, through `rank` numbers: W2 z, where z is W1[token] ("vanilla"), W1[token]
    gated by the row ("gated"), or put out by a small recurrent cell over the walk ("rnn").

    markov_w1: [vocab, rank].   markov_w2: [drafted, rank].
    """

    def __init__(self, kind: str, width: int, vocab: int, drafted: int, rank: int):
        super().__init__()
        self.kind, self.rank = kind, rank
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, drafted, bias=False)
        nn.init.zeros_(self.markov_w1.weight)  # a new head corrects nothing, and never behind tokens it has not met
        if kind == "rnn":
            nn.init.zeros_(self.markov_w2.weight)
        self.gate_proj = nn.Linear(width + rank, rank) if kind == "gated" else None
        self.joint_proj = nn.Linear(width + 2 * rank, 3 * rank) if kind == "rnn" else None

    def step(self, row: Tensor, token: Tensor, before: Tensor | None) -> Tensor:
        """What the head makes of rows [B, n, width] behind tokens int64 [B, n], [B, n, 2 rank], for "rnn" [B, n, 3 rank]:
        W1[token], then z, then for "rnn" the cell's state.   before: the same of the step before, None for the first."""
        code = self.markov_w1(token)
        if self.kind == "vanilla":
            return torch.cat([code, code], -1)
        if self.kind == "gated":
            return torch.cat([code, self.gate_proj(torch.cat([row, code], -1)).sigmoid() * code], -1)
        state = torch.zeros_like(code) if before is None else before[..., -self.rank :]
        gate, rest = self.joint_proj(torch.cat([state, code, row], -1)).split((self.rank, 2 * self.rank), -1)
        candidate, out = rest.tanh().chunk(2, -1)
        return torch.cat([code, out, candidate.lerp(state, gate.sigmoid())], -1)

    def forward(self, carried: Tensor) -> Tensor:
        """The correction, float32 [B, n, drafted], of what `step` gave."""
        return F.linear(carried[..., self.rank : 2 * self.rank], self.markov_w2.weight).float()


class ConfidenceHead(nn.Module):
    """A linear map to the logit of being accepted, [..., 1] of [..., width]."""

    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, read: Tensor) -> Tensor:
        return self.proj(read)


@dataclass(frozen=True, slots=True)
class PredictedAcceptance:
    """A length control that ends a row's chain where the drafter predicts that a prefix stands with a chance below
    `threshold`: the product of its levels' predicted acceptance. Exact: a level is judged before its token is drawn.

    head: the drafter's `confidence_head`.   longest, shortest: bounds of the chain.
    """

    head: nn.Module
    threshold: float = 0.3
    longest: int = 7
    shortest: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1 or not 1 <= self.shortest <= self.longest:
            raise ValueError(f"expected a threshold within 0 and 1 and 1 <= shortest <= longest, got {self.threshold}, "
                             f"{self.shortest} and {self.longest}")  # fmt: skip

    def begin(self) -> _Walk:
        return _Walk(self)


class _Walk:
    """The decisions of one draft.   stands: float [B], the predicted chance that all levels so far are accepted."""

    def __init__(self, control: PredictedAcceptance):
        self.control, self.stands = control, 1.0

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        control = self.control
        if step >= control.longest:
            return confidence < 0
        accepted = alongside(control.head, feature)(feature)[:, 0].float().sigmoid()
        self.stands = self.stands * accepted
        return (self.stands >= control.threshold) | (step < control.shortest)
