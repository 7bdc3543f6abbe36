"""A text target that replays known answers on a clock of its own, where a pass costs what a curve says."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec.core.length.pass_costs import PassCosts
from mmspec.core.round.draft import Draft, Law, Preview, root_only
from mmspec.core.round.tree import chain

# passes over w nodes in passes over one, as measured on a processor: fp32 is not monotone, bf16 nearly flat
FP32 = {1: 1.0, 2: 1.56, 3: 1.94, 4: 1.43, 5: 1.65, 8: 1.69, 16: 2.12, 32: 2.91, 64: 4.2}
BF16 = {1: 1.0, 2: 1.01, 4: 1.07, 8: 1.19, 16: 1.41, 32: 1.78, 64: 2.6}
STEEP = {1: 1.0, 2: 2.0, 64: 64.0}
COPY = -1  # a drafted value that stands for the drafter's guess


@dataclass
class Machine:
    """The time that has passed. curve: cost of a pass by its nodes.   noise: of every pass; a few take three times as long."""

    curve: dict[int, float]
    noise: float = 0.04
    seed: int = 0
    now: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def take(self, seconds: float) -> None:
        self.now += seconds * self.rng.lognormvariate(0, self.noise) * (3 if self.rng.random() < 0.005 else 1)

    def clock(self) -> float:
        return self.now

    def cost(self, width: int) -> float:
        low, high = max(w for w in self.curve if w <= width), min(w for w in self.curve if w >= width)
        share = 0.0 if low == high else (width - low) / (high - low)
        return self.curve[low] + share * (self.curve[high] - self.curve[low])


class Replay:
    """A request whose answer is known. share: the chance that a guess of the trained drafter is right."""

    greedy, batch = True, 1

    def __init__(self, machine: Machine, costs: PassCosts, prompt: list[int], answer: list[int], share: float = 0.0):
        self.machine, self.pass_costs, self.answer, self.share = machine, costs, answer, share
        self.prompt, self.tokens = torch.tensor([prompt]), [answer[:1]]
        self.live, self.paths, self.most, self.adapts = [True], [[0]], len(answer), False
        self.widths: list[int] = []

    @property
    def emitted(self) -> list[int]:
        return [len(self.tokens[0])]

    @property
    def pending(self) -> Tensor:
        return torch.tensor([self.tokens[0][-1]])

    @property
    def done(self) -> bool:
        return not self.live[0]

    def judge(self, draft: Draft) -> None:
        """A pass over the draft, and its commit."""
        width = self.pass_costs.padded(draft.tree.nodes, self.adapts)
        began = self.machine.now
        self.machine.take(self.machine.cost(width))
        if self.widths:
            self.pass_costs.add(width, self.machine.now - began)
        self.widths.append(width)
        self.paths = [self.keep(draft.value[0])]

    def keep(self, values: Tensor) -> list[int]:
        """Commits what is right of a chain int64 [N], its root first, and the value behind it; the path."""
        at, kept = len(self.tokens[0]), 0
        for value in values[1:].tolist():
            if at + kept >= len(self.answer) or not self._right(value, at + kept):
                break
            kept += 1
        self.tokens = [self.answer[: at + kept + 1]]
        self.live = [len(self.tokens[0]) < len(self.answer)]
        return list(range(kept + 1))

    def _right(self, value: int, place: int) -> bool:
        if value == COPY:
            return random.Random(str((self.answer[:8], place))).random() < self.share
        return value == self.answer[place]


class Copying:
    """Prompt lookup over known ids: drafts what followed the last two ids the last time."""

    name, from_ids, passes, may_miss = "copying", True, 0, True

    def __init__(self, deepest: int = 15):
        self.deepest = deepest

    def open(self, target: Replay) -> Copying:
        return Copying(self.deepest)

    def preview(self, target: Replay) -> list[Preview | None]:
        ids = target.prompt[0].tolist() + target.tokens[0]
        last = ids[-2:]
        end = next((n for n in range(len(ids) - 1, 1, -1) if ids[n - 1] == last[1] and ids[n - 2] == last[0]), len(ids))
        run = ids[end : end + min(self.deepest, target.most - len(target.tokens[0]) - 1)]
        return [Preview("match", run) if run else None]

    def propose(self, target: Replay, keys: object, longest: int | None = None) -> Draft:
        (shown,) = self.preview(target)
        if shown is None:
            return root_only(target.pending)
        return drafted(target, shown.values[: longest or self.deepest])

    def observe(self, *round: object) -> None:
        pass


class Guessing:
    """A trained drafter whose guesses are right by chance. step: seconds a guess.   reading: seconds for a prompt's id."""

    name, levels = "guessing", None

    def __init__(self, machine: Machine, step: float = 0.05, reading: float = 0.004, deepest: int = 8):
        self.machine, self.step, self.reading, self.deepest = machine, step, reading, deepest

    def open_without_prefill(self, target: Replay) -> GuessingState:
        return GuessingState(self)


class GuessingState:
    passes = 0

    def __init__(self, drafter: Guessing):
        self.drafter, self.deepest, self.fresh = drafter, drafter.deepest, True

    def propose(self, target: Replay, keys: object, longest: int | None = None) -> Draft:
        count = min(longest or self.deepest, target.most - len(target.tokens[0]) - 1)
        reading = self.drafter.reading * target.prompt.shape[1] if self.fresh else 0.0
        self.drafter.machine.take(reading + self.drafter.step * count)
        self.fresh = False
        return drafted(target, [COPY] * count) if count else root_only(target.pending)

    def observe(self, *round: object) -> None:
        pass


@dataclass
class Always:
    """Drafts of one length by one drafter."""

    drafter: object
    length: int

    def open(self, target: Replay) -> Always:
        self.state = getattr(self.drafter, "open_without_prefill", getattr(self.drafter, "open", None))(target)
        return self

    def propose(self, target: Replay, keys: object) -> Draft:
        return self.state.propose(target, keys, self.length)

    def observe(self, *round: object) -> None:
        pass


def drafted(target: Replay, values: list[int]) -> Draft:
    """A chain of these values."""
    return Draft(torch.tensor([[int(target.pending), *values]]), chain(len(values)), Law("deterministic"))


def decode(target: Replay, drafter: object) -> list[int]:
    """Decodes to the end; the nodes of every draft."""
    state, nodes = drafter.open(target), []
    state.observe(target, root_only(target.pending), None, None)
    while not target.done:
        draft = state.propose(target, None)
        nodes.append(draft.tree.nodes)
        target.judge(draft)
        if not target.done:
            state.observe(target, draft, None, None)
    return nodes


class ReplayBatch:
    """Several requests in one batch: a pass costs what a pass over its widest row costs, whatever single rows gain."""

    greedy = True

    def __init__(self, machine: Machine, costs: PassCosts, rows: list[Replay]):
        self.machine, self.pass_costs, self.rows, self.batch = machine, costs, rows, len(rows)
        self.prompt, self.most = rows[0].prompt, max(len(row.answer) for row in rows)
        self.adapts, self.passes = False, 0
        self.paths: list[list[int]] = [[0] for _ in rows]

    @property
    def tokens(self) -> list[list[int]]:
        return [row.tokens[0] for row in self.rows]

    @property
    def emitted(self) -> list[int]:
        return [row.emitted[0] for row in self.rows]

    @property
    def live(self) -> list[bool]:
        return [row.live[0] for row in self.rows]

    @property
    def pending(self) -> Tensor:
        return torch.cat([row.pending for row in self.rows])

    @property
    def done(self) -> bool:
        return not any(self.live)

    def judge(self, draft: Draft) -> None:
        began = self.machine.now
        self.machine.take(self.machine.cost(draft.tree.nodes))
        if self.passes:
            self.pass_costs.add(draft.tree.nodes, self.machine.now - began)
        self.passes += 1
        self.paths = [
            row.keep(values) if row.live[0] else [] for row, values in zip(self.rows, draft.value, strict=True)
        ]


class CopyingRows:
    """`Copying` in every row of a batch."""

    name, from_ids, passes, may_miss = "copying", True, 0, True

    def __init__(self, deepest: int = 15):
        self.deepest, self.row = deepest, Copying(deepest)

    def open(self, target: ReplayBatch) -> CopyingRows:
        return self

    def preview(self, target: ReplayBatch) -> list[Preview | None]:
        return [self.row.preview(row)[0] if row.live[0] else None for row in target.rows]

    def propose(self, target: ReplayBatch, keys: object, longest: int | None = None) -> Draft:
        shown = [[] if one is None else one.values[: longest or self.deepest] for one in self.preview(target)]
        width = max(map(len, shown))
        values = [
            [int(row.pending), *run, *[-2] * (width - len(run))] for row, run in zip(target.rows, shown, strict=True)
        ]
        return Draft(torch.tensor(values), chain(width), Law("deterministic")) if width else root_only(target.pending)

    def observe(self, *round: object) -> None:
        pass
