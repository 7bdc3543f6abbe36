"""A chain of Gaussian vectors: x[t+1] ~ N(pull x[t] + push, scale^2), drafted with another pull and push."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Law, root_only
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.tree import chain
from mmspec.core.verdict import Verdict, run_of

SCALE = 0.5


@dataclass
class Chain:
    """The target. kept: float [B, length + surplus, d], the values so far."""

    pending: Tensor
    length: int
    pull: float = 0.7
    push: float = 0.3
    emitted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batch, self.emitted = len(self.pending), [0] * len(self.pending)
        self.rows: list[list[Tensor]] = [[] for _ in range(self.batch)]

    @property
    def done(self) -> bool:
        return min(self.emitted) >= self.length

    def prefill(self) -> tuple[Draft, Evidence]:
        draft = root_only(self.pending)
        return draft, self.score(draft)

    def score(self, draft: Draft) -> Evidence:
        return Evidence(mean=self.pull * draft.value + self.push, scale=torch.full_like(draft.value[..., :1], SCALE))

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        (run, count), accepted = run_of(draft, verdict), []
        for row, rows in enumerate(self.rows):
            accepted.append(int(verdict.depth[row]) if len(rows) < self.length else None)
            rows += run[row, : count[row]]
        self.pending, self.emitted = verdict.correction, [len(rows) for rows in self.rows]
        return accepted


@dataclass(frozen=True)
class Guesser:
    """Drafts `length` values from its own chain."""

    length: int = 3
    pull: float = 0.5
    push: float = 0.1
    name: str = "guesser"
    passes: int = 0

    def open(self, target: Chain) -> Guesser:
        return self

    def propose(self, target: Chain, keys: Keys) -> Draft:
        noise, values, means = keys.normal(Purpose.DRAFT, self.length, target.pending.shape[-1]), [target.pending], []
        for step in range(self.length):
            means.append(self.pull * values[-1] + self.push)
            values.append(means[-1] + SCALE * noise[:, step])
        mean = torch.stack(means, 1)
        row = torch.tensor([*range(self.length), -1])
        law = Law("without_replacement", row, mean=mean, scale=torch.full_like(mean[..., :1], SCALE))
        return Draft(torch.stack(values, 1), chain(self.length), law)

    def observe(self, target: Chain, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        return None
