"""A domain of its own: melodies, whose notes each depend on the one before."""

import torch
from torch import Tensor

from mmspec import core
from mmspec.core.sampling import draw


class Melody:
    """The target: B melodies of `length` notes. table: float32 [V, V], log-weights of a note given the one before.

    A target holds the state of a request. This one's is the notes; a model's is a cache too.
    """

    verdicts = ("path",)  # the kinds it can take: a prefix and its correction

    def __init__(self, table: Tensor, first: Tensor, length: int):
        self.table, self.pending, self.length = table, first, length
        self.batch, self.notes = len(first), [[] for _ in first]

    @property
    def emitted(self) -> list[int]:
        return [len(row) for row in self.notes]

    @property
    def done(self) -> bool:
        return min(self.emitted) >= self.length

    def prefill(self) -> tuple[core.Draft, core.Evidence]:
        draft = core.root_only(self.pending)
        return draft, self.score(draft)

    def score(self, draft: core.Draft) -> core.Evidence:
        return core.Evidence(self.table[draft.value])  # [B, N, V]: one pass over all nodes

    def commit(self, draft: core.Draft, evidence: core.Evidence, verdict: core.Verdict) -> list[int | None]:
        run, count = core.run_of(draft, verdict)
        accepted = []
        for row, values, number in zip(self.notes, run.tolist(), count.tolist(), strict=True):
            new = values[: min(number, self.length - len(row))]
            row += new
            accepted.append(min(number - 1, len(new)) if new else None)  # None for a row that had stopped
        self.pending = verdict.correction
        return accepted


class Whistle(core.Memoryless):
    """The drafter: `length` notes from a table of its own, and on record the law of each."""

    name = "whistle"

    def __init__(self, table: Tensor, length: int = 4):
        self.table, self.length = table, length

    def propose(self, target: Melody, keys: core.Keys) -> core.Draft:
        values, scores, uniform = [target.pending], [], keys.uniform(core.Purpose.DRAFT, self.length)
        for step in range(self.length):
            scores.append(self.table[values[-1]])
            values.append(draw(scores[-1], uniform[:, step]))
        law = core.Law("without_replacement", torch.tensor([*range(self.length), -1]), torch.stack(scores, 1))
        return core.Draft(torch.stack(values, 1), core.chain(self.length), law)


def compose(
    table: Tensor, drafter: Whistle | None, first: Tensor, length: int, seed: int = 0, rule: str = "exact"
) -> tuple[Tensor, core.Stats]:
    """Melodies int64 [B, length] that begin behind the notes `first` int64 [B]. None as drafter composes plainly."""
    target = Melody(table, first, length)
    stats = core.DecodingRun(target, drafter, core.resolve(rule, greedy=False), core.Keys.of(seed, len(first))).run()
    return torch.tensor(target.notes), stats
