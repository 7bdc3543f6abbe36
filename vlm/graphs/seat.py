"""A place for a batch in a captured round: buffers of one size, and the round over them as something to replay."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmspec.core.drafting.shapes import nodes_of
from mmspec.core.graphs.keys import CountedKeys
from mmspec.core.graphs.replay import replayed
from mmspec.core.graphs.static import Static
from mmspec.core.graphs.watching import prove
from mmspec.core.keys import Keys
from mmspec.core.loop import DraftState, NoDraft, judged
from mmspec.core.rules.base import Rule
from mmspec.vlm.graphs import drafting
from mmspec.vlm.graphs.target import SeatedTarget
from mmspec.vlm.target import TextTarget

Record = Callable[[Callable[[], None], torch.device], Callable[[], None]]


class Seat:
    """rows: of its buffers, at least as many as the request has.   bound: slots a row may have committed before a round.

    width: nodes of a draft's longest path, root included.   reach: how far positions of drafts may lie ahead of their slots.
    name: of its kind.   passes: of the drafter, a round.
    """

    def __init__(
        self, target: TextTarget, state: DraftState, rule: Rule, keys: Keys, *, rows: int, bound: int, width: int,
        reach: int = 0, name: tuple = (),
    ):  # fmt: skip
        self.rows, self.bound, self.width, self.rule, self.name = rows, bound, width, rule, name
        nodes = 1 if isinstance(state, NoDraft) else nodes_of(state.shape)
        self.target = SeatedTarget(target, rows, bound, width, nodes)
        self.drafts = not isinstance(state, NoDraft)
        self.static = Static()
        if self.drafts:
            self.state = drafting.seated(state, self.target, bound + reach + 2 * width + 1)
            drafting.keep(self.state, self.static)
        else:
            self.state = state
        self.keys = CountedKeys(keys.seeds.new_zeros(rows), keys.seeds.new_zeros(()))
        self.target.keep(self.static)
        self.static.keep(self.keys, "round")
        self.run, self.passes = self.round, 0

    @torch.no_grad()
    def round(self) -> None:
        """One round of every row, as `Decoding.step` takes it."""
        draft = self.state.propose(self.target, self.keys)
        evidence = self.target.score(draft)
        verdict = judged(self.rule, draft, evidence, self.keys)[1]
        self.target.commit(draft, evidence, verdict)
        self.state.observe(self.target, draft, evidence, verdict)
        self.keys.round = self.keys.round + 1
        self.static.settle()

    def load(self, target: TextTarget, state: DraftState, keys: Keys) -> None:
        """Seats a request behind its prompt, or that of a smaller seat; copies only, in place."""
        self.target.load(target)
        if self.drafts:
            drafting.load(self.state, state)
        self.keys.seeds.zero_()[: len(keys.seeds)] = keys.seeds
        self.keys.round.fill_(keys.round) if isinstance(keys.round, int) else self.keys.round.copy_(keys.round)

    def rehearse(self, known: bool, record: Record = replayed) -> None:
        """Makes `run` of the round. What is seated may be any request, and has to be loaded again behind this.

        known: whether rounds like this one have been proven.   Raises Refused, where nothing can replay it.
        """
        self.target.alive.zero_()
        before = self.state.passes
        self.round()
        self.passes = self.state.passes - before
        if not known:
            prove(self.round)
        self.run = record(self.round, self.target.device)
