"""The round, once, for every domain: draft, score, weigh, select, resample, commit, observe.

A domain brings a target (what the values are and how they are judged), a drafter and a rule. Nothing here knows whether
a value is a token, a vector or a block of video, nor whether a round keeps a prefix, a mask or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import torch

from mmspec.core.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.keys import Keys, Purpose
from mmspec.core.rules.base import Rule, UnsupportedCombination
from mmspec.core.stats import Stats


class Target(Protocol):
    """The target's side of one request; holds all of its state (cache, lengths, outputs).

    pending: the last committed value of every row, [B] or [B, d]: the root of the next draft.
    done: every row has stopped.   batch: B.   verdicts: the kinds of verdict it can take.
    """

    pending: object
    done: bool
    batch: int
    verdicts: tuple[str, ...]

    def prefill(self) -> tuple[Draft, Evidence]:
        """Runs the prompt. Returns a draft of the root alone and the evidence for what follows the prompt."""

    def score(self, draft: Draft) -> Evidence:
        """One target pass over all nodes of the draft."""

    def regenerate(self, draft: Draft, verdict: Verdict) -> object:
        """The value of each row of `verdict.redo`, made by the target itself; only where `verdicts` names it."""

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        """Takes the verdict into the state. Returns per row the accepted drafted values, None for a stopped row."""

    @property
    def emitted(self) -> list[int]:
        """Values generated per row so far."""


class DraftState(Protocol):
    """The drafter's side of one request. passes: forward passes of its model so far."""

    passes: int

    def propose(self, target: Target, keys: Keys) -> Draft:
        """The next draft; its root is `target.pending`."""

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Learns what became of the draft; called after `target.commit`, and once after the prefill."""

    # Where it has it, `follow(target)` makes of this state that of a request which goes on where this one has ended; called in
    # the place of `open`, so after that request's prefill, which read only what is new. See `can_follow`.


class Drafter(Protocol):
    """A drafter holds weights and settings only; `open` makes the state of one request, after its prefill.

    One that says `from_ids` opens from the ids of the whole prompt, whatever of it the prefill has read.
    """

    name: str

    def open(self, target: Target) -> DraftState:
        """State for one request."""


def can_follow(state: object) -> bool:
    """Whether a drafter's state, and the one it wraps as `inner`, can go on in another request.

    One that reads its prompts in a way of its own (`prefill`) goes on in a way of its own: it does not inherit `follow`.
    """
    kinds = type(state).__mro__
    follow, read = (
        next((n for n, one in enumerate(kinds) if name in vars(one)), None) for name in ("follow", "prefill")
    )
    if follow is None or (read is not None and read < follow):
        return False
    inner = getattr(state, "inner", None)
    return inner is None or can_follow(inner)


class Memoryless:
    """Base of drafters that keep nothing about a request: the drafter serves as its own state."""

    name = "memoryless"
    passes = 0
    from_ids = True

    def open(self, target: Target) -> Memoryless:
        """Itself."""
        return self

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Nothing is learned."""


class NoDraft(Memoryless):
    """Plain decoding through the same loop: drafts nothing, so each pass yields one value."""

    name = "none"

    def propose(self, target: Target, keys: Keys) -> Draft:
        return root_only(target.pending)


def check_drafter(name: str, drafter: object) -> None:
    """Refuses what drafts nothing.

    Args:
        name: of the argument that took it, for the error.
        drafter: None to decode plainly, or the drafter.

    Raises:
        ValueError: for anything else, a drafter's class included.
    """
    if drafter is not None and (isinstance(drafter, type) or not hasattr(drafter, "open")):
        raise ValueError(
            f"{name}: expected None, 'auto' or a drafter object, got {drafter!r:.60}; make one, such as SJD(window=16)"
        )


class DecodingRun:
    """One request in flight. Call `step` until it returns False, or `run`. Several may take steps in turn.

    stats: what a domain counts in, None for what all count.   state: the drafter's, None before the first round.
    earlier: the drafter's state of the request that this one goes on from, which it can `follow`; None to open a new one.
    lasts: another request will go on from this one, so that its states learn of the last round too.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        rule: Rule,
        keys: Keys,
        stats: Stats | None = None,
        *,
        earlier: DraftState | None = None,
        lasts: bool = False,
    ):
        check_drafter("drafter", drafter)
        self.target, self.drafter, self.rule, self.keys = target, drafter or NoDraft(), rule, keys
        self.stats = Stats() if stats is None else stats
        self.stats.rule, self.stats.drafter, self.stats.exact = rule.name, self.drafter.name, rule.exact
        self.state: DraftState | None = None
        self.earlier, self.lasts = earlier, lasts

    def run(self) -> Stats:
        """Decodes to the end."""
        while self.step():
            pass
        return self.stats

    @torch.no_grad()
    def step(self) -> bool:
        """One round (the first is the prefill). Returns whether rows are left to decode."""
        stats, target, started = self.stats, self.target, perf_counter()
        if self.state is None:
            with stats.time("prefill"):
                draft, evidence = target.prefill()
                self.state = self.drafter.open(target) if self.earlier is None else self.earlier.follow(target)
        else:
            with stats.time("draft"):
                draft = self.state.propose(target, self.keys)
            drafted = perf_counter()
            with stats.time("target"):
                evidence = target.score(draft)
        with stats.time("verify"):
            verdict = self.verify(draft, evidence)
            accepted = target.commit(draft, evidence, verdict)
        # the first pass behind a prompt is slower than the next ones
        if (costs := getattr(target, "pass_costs", None)) is not None and len(stats.accepted) > 1:
            costs.add(target.scored, perf_counter() - drafted)
        if not target.done or self.lasts:
            with stats.time("draft"):
                self.state.observe(target, draft, evidence, verdict)
        self.keys.round += 1
        # a target that makes again what was rejected passes over nothing else
        worked = [a is not None and not (a and verdict.kind == "regenerate") for a in accepted]
        stats.target_passes += verdict.kind != "regenerate" or any(worked)
        stats.drafter_passes = self.state.passes
        stats.row_passes += sum(worked)
        stats.accepted.append(accepted)
        stats.emitted = list(target.emitted)
        stats.took(perf_counter() - started)
        return not target.done

    def verify(self, draft: Draft, evidence: Evidence) -> Verdict:
        """Weigh, select, resample; and the target's own values where the rule asks for them."""
        rule, verdict = verify(self.rule, draft, evidence, self.keys)
        if verdict.kind not in self.target.verdicts:
            raise UnsupportedCombination(
                f"rule {rule.name!r}: expected one whose verdict is a {' or a '.join(self.target.verdicts)} for this target, "
                f"got a {verdict.kind}; take another rule, such as 'exact'"
            )
        if verdict.kind == "regenerate":
            with self.stats.time("target"):
                verdict.correction = self.target.regenerate(draft, verdict)
        return verdict


def verify(rule: Rule, draft: Draft, evidence: Evidence, keys: Keys) -> tuple[Rule, Verdict]:
    """Weigh, select, resample: the rule that judged, and its verdict."""
    rule = rule.rule_for(draft, evidence)
    rule.check_evidence(evidence)
    rule.check(draft)
    weights = rule.weigh(evidence, draft)
    shape = (draft.batch, draft.tree.nodes)
    # nothing is left to chance where only the root stands or, in a greedy request, all thresholds are 0 or 1
    settled = evidence.greedy or shape[1] == 1
    uniform = weights.threshold.new_zeros(shape) if settled else keys.uniform(Purpose.ACCEPT, shape[1])
    verdict = rule.select(weights, uniform, draft)
    return rule, rule.resample(evidence, draft, weights, verdict, keys)


def run_to_end(start: Callable[[], DecodingRun], stopped: Callable[[], bool] = lambda: False) -> DecodingRun:
    """Makes a request and decodes it to the end, or to the first round behind which it is `stopped`; its stats hold the
    seconds of the whole call."""
    started = perf_counter()
    run = start()
    while run.step() and not stopped():
        pass
    run.stats.close(perf_counter() - started)
    return run
