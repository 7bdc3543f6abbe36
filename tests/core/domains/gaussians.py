"""A chain of Gaussian vectors: x[t+1] ~ N(pull x[t] + push, scale^2), drafted with another pull and push."""

import torch
from torch import Tensor

from mmspec.core import Draft, Evidence, Keys, Law, Memoryless, Purpose, Verdict, chain, root_only, run_of

SCALE = 0.5


class Chain:
    """The target. rows: per row, the values so far, each float [d]."""

    verdicts = ("path",)

    def __init__(self, start: Tensor, length: int, pull: float = 0.7, push: float = 0.3):
        self.pending, self.length, self.pull, self.push = start, length, pull, push
        self.batch, self.rows = len(start), [[] for _ in start]

    @property
    def emitted(self) -> list[int]:
        return [len(row) for row in self.rows]

    @property
    def done(self) -> bool:
        return min(self.emitted) >= self.length

    def prefill(self) -> tuple[Draft, Evidence]:
        draft = root_only(self.pending)
        return draft, self.score(draft)

    def score(self, draft: Draft) -> Evidence:
        return Evidence(mean=self.pull * draft.value + self.push, scale=torch.full_like(draft.value[..., :1], SCALE))

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        (run, count), running = run_of(draft, verdict), [n < self.length for n in self.emitted]
        for values, row, number in zip(run, self.rows, count.tolist(), strict=True):
            row += values[:number]
        self.pending = verdict.correction
        return [depth if runs else None for depth, runs in zip(verdict.depth.tolist(), running, strict=True)]


class Guesser(Memoryless):
    """Drafts `length` values from its own chain."""

    name = "guesser"

    def __init__(self, length: int = 3, pull: float = 0.5, push: float = 0.1):
        self.length, self.pull, self.push = length, pull, push

    def propose(self, target: Chain, keys: Keys) -> Draft:
        noise, values, means = keys.normal(Purpose.DRAFT, self.length, target.pending.shape[-1]), [target.pending], []
        for step in range(self.length):
            means.append(self.pull * values[-1] + self.push)
            values.append(means[-1] + SCALE * noise[:, step])
        mean, row = torch.stack(means, 1), torch.tensor([*range(self.length), -1])
        law = Law("without_replacement", row, mean=mean, scale=torch.full_like(mean[..., :1], SCALE))
        return Draft(torch.stack(values, 1), chain(self.length), law)
