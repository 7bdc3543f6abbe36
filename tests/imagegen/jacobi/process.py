"""The law of everything a Jacobi drafter and a rule emit, over all rounds: every random choice of the real code, enumerated.

A round is run again and again. Where it draws, `Fork` reports the law; each row is split into its possible outcomes and the
round starts over with these written down. Between rounds, rows in the same state are merged. Probabilities are float64:
there is no sampling error.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, root_only, run_of
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DecodingRun, Drafter
from mmspec.core.round.rules.base import Rule
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi.initialisation import PositionRing
from mmspec.imagegen.jacobi.jacobi_drafts import JacobiState
from mmspec.kernels.draft_tree import select_path


class Fork(Exception):
    """A draw that is not written down yet. law: float64 [S, ..., n], unnormalised."""

    def __init__(self, law: Tensor):
        super().__init__("a draw is not written down yet")
        self.law = law.double()


@dataclass(slots=True)
class Script:
    """The outcomes of a round's draws, one tensor [S, K] a draw, and how likely each row is, float64 [S]."""

    chance: Tensor
    origin: Tensor
    outcomes: list[Tensor] = field(default_factory=list)
    played: int = 0

    def decide(self, law: Tensor) -> Tensor:
        if self.played == len(self.outcomes):
            raise Fork(law)
        self.played += 1
        return self.outcomes[self.played - 1].view(law.shape[:-1])

    def split(self, law: Tensor) -> None:
        """Writes down one more draw: every outcome of every row."""
        law = law.flatten(1, -2) if law.dim() > 2 else law[:, None]
        mass = law.sum(-1, keepdim=True)
        first = torch.arange(law.shape[-1]) == 0  # what the sampler returns where there is nothing to draw
        law = torch.where(mass > 0, law / mass, first.double())
        row, found = torch.arange(len(law)), torch.zeros(len(law), 0, dtype=torch.long)
        for column in range(law.shape[1]):
            share = law[row, column]
            parent, outcome = (share > 0).nonzero(as_tuple=True)
            self.chance = self.chance[parent] * share[parent, outcome]
            row, found = row[parent], torch.cat((found[parent], outcome[:, None]), 1)
            self.origin = self.origin[parent]
            self.outcomes = [o[parent] for o in self.outcomes]
        self.outcomes.append(found)


@dataclass(slots=True)
class Canvas:
    """A target over context tables, all rows filled equally far when a draft is proposed.

    uniform: float64 [S, positions, 2], what is known of the uniform behind each position's Gumbel noise (V = 2: value 1 is
    picked where it lies below p(1)).
    """

    tables: Sequence[Tensor]
    geometry: Geometry
    model: SimpleNamespace
    values: Tensor
    last: Tensor
    pending: Tensor
    uniform: Tensor
    paths: list[range] = field(default_factory=list)
    verdicts: tuple[str, ...] = ("path",)
    greedy = False
    device = torch.device("cpu")

    @property
    def batch(self) -> int:
        return len(self.values)

    @property
    def total(self) -> int:
        return len(self.tables)

    @property
    def left(self) -> int:
        return self.total - 1 - int(self.last[0])

    @property
    def emitted(self) -> list[int]:
        return [int(self.last[0]) + 1]

    def score(self, draft: Draft) -> Evidence:
        size, filled = self.tables[0].shape[-1], int(self.last[0]) + 1
        code = torch.zeros(self.batch, draft.tree.nodes, dtype=torch.long)
        for index in range(filled):
            code[:, 0] = code[:, 0] * size + self.values[:, index]
        laws = []
        for node, (parent, depth) in enumerate(
            zip(draft.tree.parent[0].tolist(), draft.tree.depth[0].tolist(), strict=True)
        ):
            if node:
                code[:, node] = code[:, parent] * size + draft.value[:, node]
            index = filled + depth
            laws.append(
                self.tables[index][code[:, node]] if index < self.total else torch.ones(self.batch, size) / size
            )
        return Evidence(torch.stack(laws, 1).log())

    def commit(self, draft: Draft, verdict) -> None:
        run, count = run_of(draft, verdict)
        place = self.last[:, None] + 1 + torch.arange(run.shape[1])
        keep = (torch.arange(run.shape[1]) < count[:, None]) & (place < self.total)
        place = place.clamp(max=self.total - 1)
        for column in range(run.shape[1]):
            at = place[:, column, None]
            new = torch.where(keep[:, column, None], run[:, column, None], self.values.gather(1, at))
            self.values = self.values.scatter(1, at, new)
        self.last, self.pending = self.last + count, verdict.correction
        self.paths = [range(int(count.max()))]


class PositionKeys(Keys):
    """Noise that says which position it belongs to."""

    def gumbel_at(self, position: Tensor, lanes: int) -> Tensor:
        return position[..., None].float().expand(-1, -1, lanes)


def take(thing: object, row: Tensor) -> object:
    """A copy of a canvas or a state with some of its rows."""
    if isinstance(thing, Tensor):
        return thing[row]
    made = copy.copy(thing)
    names = made.__slots__ if isinstance(made, Canvas) else vars(made)
    for name in names:
        value = getattr(made, name)
        if name != "tables" and isinstance(value, Tensor | PositionRing):
            setattr(made, name, take(value, row))
        elif isinstance(value, deque):  # of pairs of tensors
            setattr(made, name, deque((tuple(part[row] for part in pair) for pair in value), value.maxlen))
    return made


def fingerprint(canvas: Canvas, state: JacobiState) -> Tensor:
    """int64 [S], equal for rows in equal states."""
    parts = [canvas.values, canvas.pending[:, None], canvas.uniform]
    for value in vars(state).values():
        value = value.table if isinstance(value, PositionRing) else value
        parts += [value] if isinstance(value, Tensor) else []
        parts += [part for pair in value for part in pair] if isinstance(value, deque) else []
    bits = torch.cat([p.double().reshape(canvas.batch, -1) for p in parts], 1).view(torch.int64)
    odd = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    mixed = bits * odd
    return ((mixed ^ (mixed >> 29)) * odd.flip(0)).sum(1)


@contextmanager
def scripted(script: Script, canvas: Canvas) -> Iterator[None]:
    """Draws inside are taken from the script."""

    def sample(weight: Tensor, uniform: Tensor) -> Tensor:
        return script.decide(weight)

    def select(threshold: Tensor, uniform: Tensor, *shape: object) -> Tensor:
        chance = torch.zeros_like(threshold, dtype=torch.float64)
        passes = threshold.double().clamp(0, 1)[:, 1:]
        for pattern in range(2 ** passes.shape[1]):
            passing = (pattern >> torch.arange(passes.shape[1]) & 1).bool()
            forced = torch.where(passing, 0.25, 0.75).expand_as(passes)
            forced = torch.nn.functional.pad(forced, (1, 0), value=0.75)
            node = select_path(torch.full_like(forced, 0.5), forced, *shape)
            chance.scatter_add_(1, node[:, None], torch.where(passing, passes, 1 - passes).prod(1, keepdim=True))
        return script.decide(chance)

    def pick(scores: Tensor, noise: Tensor) -> Tensor:
        position = noise[..., 0].long()[..., None].expand(*noise.shape)
        low, high = canvas.uniform.gather(1, position).unbind(-1)
        one = scores.softmax(-1)[..., 1]
        below = ((one - low) / (high - low)).clamp(0, 1)
        value = script.decide(torch.stack((1 - below, below), -1))
        known = torch.stack(
            (low.maximum(torch.where(value == 1, 0, one)), high.minimum(torch.where(value == 1, one, 1))), -1
        )
        canvas.uniform = canvas.uniform.scatter(1, position, known)
        return value

    base, jacobi = "mmspec.core.round.rules.base", "mmspec.imagegen.jacobi"
    with (
        patch(f"{base}.sample_categorical", sample),
        patch(f"{base}.select_path", select),
        patch(f"{jacobi}.jacobi_drafts.sample_categorical", sample),
        patch(f"{jacobi}.tree.sample_categorical", sample),
        patch(f"{jacobi}.jacobi_drafts.gumbel_pick", pick),
    ):
        yield


def one_round(drafter: Drafter, rule: Rule, canvas: Canvas, state: JacobiState | None) -> JacobiState:
    """The round loop's own order of calls, the state moved in place."""
    keys = PositionKeys(torch.zeros(canvas.batch, dtype=torch.long))
    first = state is None
    draft = root_only(canvas.pending) if first else state.propose(canvas, keys)
    evidence = canvas.score(draft)
    verdict = DecodingRun(canvas, drafter, rule, keys).verify(draft, evidence)
    state = drafter.open(canvas) if first else state
    canvas.commit(draft, verdict)
    state.observe(canvas, draft, evidence, verdict)
    return state


def every_outcome(
    drafter: Drafter, rule: Rule, canvas: Canvas, state: JacobiState | None, chance: Tensor
) -> tuple[Canvas, JacobiState, Tensor]:
    """One round of all rows with every choice: the rows after it, and how likely each is."""
    script = Script(chance, torch.arange(len(chance)))
    while True:
        board, after = take(canvas, script.origin), None if state is None else take(state, script.origin)
        script.played = 0
        try:
            with scripted(script, board):
                after = one_round(drafter, rule, board, after)
            return board, after, script.chance
        except Fork as fork:
            script.split(fork.law)


def process_law(drafter: Drafter, rule: Rule, tables: Sequence[Tensor], geometry: Geometry, codes: int) -> Tensor:
    """The joint law float64 [V^total] of all values of an image; tables: per value, float64 [V^index, V]."""
    total, size = len(tables), tables[0].shape[-1]
    nothing = torch.zeros(1, dtype=torch.long)
    whole = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(1, total + drafter.window + 1, 2)
    start = Canvas(
        tables,
        geometry,
        SimpleNamespace(codes=codes, size=size),
        torch.zeros(1, total, dtype=torch.long),
        nothing - 1,
        nothing,
        whole,
    )
    waiting: dict[int, list] = {0: [(start, None, torch.ones(1, dtype=torch.float64))]}
    joint = torch.zeros(size**total, dtype=torch.float64)
    for filled in range(total):
        for group in waiting.pop(filled, []):
            canvas, state, chance = every_outcome(drafter, rule, *group)
            for reached in canvas.last.unique().tolist():
                here = (canvas.last == reached).nonzero()[:, 0]
                if reached == total - 1:
                    weight = size ** torch.arange(total - 1, -1, -1)
                    joint.scatter_add_(0, (canvas.values[here] * weight).sum(1), chance[here])
                    continue
                board, after = take(canvas, here), take(state, here)
                seen, merged = fingerprint(board, after).unique(return_inverse=True)
                some = torch.zeros(len(seen), dtype=torch.long).scatter_(0, merged, torch.arange(len(here)))
                mass = torch.zeros(len(seen), dtype=torch.float64).scatter_add_(0, merged, chance[here])
                waiting.setdefault(reached + 1, []).append((take(board, some), take(after, some), mass))
    return joint
