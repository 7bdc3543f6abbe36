"""A domain of melodies, in which each note depends on the note before it."""

import torch
from torch import Tensor

from mmspec import core
from mmspec.core.round.sampling import draw


class Melody:
    """The target: the state of one request, which is its notes. The target of a model also holds a cache.

    Args:
        table: float32 [V, V], log-weights of a note given the note before it.
        first: int64 [B], the notes that the melodies follow.
        length: The notes of a melody.
    """

    verdicts = ("path",)  # the kinds of verdict that it can take: a prefix and its correction

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
    """The drafter: it draws `length` notes from a table of its own, and records their distributions."""

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
    """Melodies int64 [B, length] that follow the notes `first` int64 [B]. Without a drafter it composes plainly."""
    target = Melody(table, first, length)
    stats = core.DecodingRun(target, drafter, core.resolve(rule, greedy=False), core.Keys.of(seed, len(first))).run()
    return torch.tensor(target.notes), stats
