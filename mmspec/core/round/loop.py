"""The round of all domains: draft, score, weigh, select, resample, commit, observe. It does not know whether a value is
a token, a vector or a block of video, nor whether a round accepts a prefix, a mask or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mmspec.core.layers.small_products import SmallProducts, modules_within
from mmspec.core.round.batch_target import NotCopied
from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules.base import Rule, UnsupportedCombination
from mmspec.core.round.stats import Stats


class Target(Protocol):
    """The target's side of a request, with all of its state (cache, lengths, outputs)."""

    pending: object  # the last committed value of every row, [B] or [B, d]: the root of the next draft
    done: bool  # every row has stopped
    batch: int
    verdicts: tuple[str, ...]  # the kinds that it supports

    def prefill(self) -> tuple[Draft, Evidence]:
        """Return a draft of the root alone and the evidence for the value after the prompt."""

    def score(self, draft: Draft) -> Evidence:
        """Run a target pass over all nodes of the draft."""

    def regenerate(self, draft: Draft, verdict: Verdict) -> object:
        """Return the target's own value for each row of `verdict.redo`; only for targets whose `verdicts` include it."""

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        """Return the number of accepted drafted values per row, None for a stopped row."""

    @property
    def emitted(self) -> list[int]:
        """The number of values generated per row so far."""


class DraftState(Protocol):
    """The drafter's side of a request. It may have `follow(target)`, which returns the state of a request that
    continues this request. That is called in place of `open`, after a prefill of the new part of the prompt. See
    `can_follow`."""

    passes: int  # forward passes of the drafter's model so far

    def propose(self, target: Target, keys: Keys) -> Draft:
        """Start from `target.pending` as the root."""

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Called after `target.commit`, and once after the prefill."""


class Drafter(Protocol):
    """A drafter with `from_ids` opens from the ids of the whole prompt, whatever part of it the prefill has read."""

    name: str

    def open(self, target: Target) -> DraftState:
        """Called after the prefill."""


def opens_from_ids(drafter: Drafter) -> bool:
    return getattr(drafter, "from_ids", False)


def can_follow(state: object) -> bool:
    """A subclass that overrides `prefill` must also define its own `follow`; the state that it wraps as `inner` must
    follow too."""
    kinds = type(state).__mro__
    follow, read = (
        next((n for n, kind in enumerate(kinds) if name in vars(kind)), None) for name in ("follow", "prefill")
    )
    if follow is None or (read is not None and read < follow):
        return False
    inner = getattr(state, "inner", None)
    return inner is None or can_follow(inner)


class Memoryless:
    """Base of drafters without a state per request: the drafter serves as its own state."""

    name = "memoryless"
    passes = 0
    from_ids = True

    def open(self, target: Target) -> Memoryless:
        """Return the drafter itself."""
        return self

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Learn nothing."""


class NoDraft(Memoryless):
    name = "none"

    def propose(self, target: Target, keys: Keys) -> Draft:
        return root_only(target.pending)


def check_drafter(name: str, drafter: object) -> None:
    if drafter is not None and (isinstance(drafter, type) or not hasattr(drafter, "open")):
        raise ValueError(
            f"{name}: expected None, 'auto' or a drafter object, got {drafter!r:.60}; pass an object, such as SJD(window=16)"
        )


class DecodingRun(NotCopied):
    """A request in flight. Call `step` until it returns False, or `run`. Several runs may alternate their steps.

    Args:
        target: The target's side of the request.
        drafter: The drafter, None for plain decoding.
        rule: The acceptance rule.
        keys: The random numbers.
        stats: The domain's statistics, None for the common statistics.
        earlier: The drafter's state of the request that this run continues; None to open a new state.
        lasts: Whether another request will continue this run, so that its states also observe the last round.

    Attributes:
        state: The drafter's state, None before the prefill.
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
        # drafters run the target's head, and some its layers; targets without passes over few rows have no modules
        modules = tuple(modules_within(getattr(target, "modules", ())))
        self.small_products = SmallProducts(*modules, *(modules_within(self.drafter) if modules else ()))

    def run(self) -> Stats:
        """Decode to the end."""
        while self.step():
            pass
        return self.stats

    @torch.no_grad()
    def step(self) -> bool:
        """Run a round (the first is the prefill). Return whether rows are left to decode."""
        with attention_of_changing_shapes(self.keys.seeds.device):
            return self._step()

    def _step(self) -> bool:
        stats, target, started = self.stats, self.target, perf_counter()
        # 1. propose and score; the first round is the prefill, which scores the root alone
        if self.state is None:
            with stats.time("prefill"):
                draft, evidence = target.prefill()
                self.state = self.drafter.open(target) if self.earlier is None else self.earlier.follow(target)
        else:
            with stats.time("draft"), self.small_products:
                draft = self.state.propose(target, self.keys)
            drafted = perf_counter()
            with stats.time("target"):
                evidence = target.score(draft)
        # 2. verify and commit
        with stats.time("verify"):
            verdict = self.verify(draft, evidence)
            accepted = target.commit(draft, evidence, verdict)
        # the first pass after a prompt is slower than later passes
        if (costs := getattr(target, "pass_costs", None)) is not None and len(stats.accepted) > 1:
            costs.add(target.scored, perf_counter() - drafted)
        # 3. the drafter observes, unless nothing follows
        if not target.done or self.lasts:
            with stats.time("draft"), self.small_products:
                self.state.observe(target, draft, evidence, verdict)
        self.keys.round += 1
        # 4. count: a regenerating target runs a forward pass for rejected rows only
        worked = [a is not None and not (a and verdict.kind == "regenerate") for a in accepted]
        stats.target_passes += verdict.kind != "regenerate" or any(worked)
        stats.drafter_passes = self.state.passes
        stats.row_passes += sum(worked)
        stats.accepted.append(accepted)
        stats.emitted = list(target.emitted)
        stats.add_paid(verdict.paid)
        stats.took(perf_counter() - started)
        return not target.done

    def verify(self, draft: Draft, evidence: Evidence) -> Verdict:
        """Weigh, select and resample, then let the target regenerate values where the rule requires it."""
        rule, verdict = verify(self.rule, draft, evidence, self.keys)
        if verdict.kind not in self.target.verdicts:
            raise UnsupportedCombination(
                f"rule {rule.name!r}: expected a rule with a {' or '.join(self.target.verdicts)} verdict for this target, "
                f"got a {verdict.kind} verdict; use another rule, such as 'exact'"
            )
        if verdict.kind == "regenerate":
            with self.stats.time("target"):
                verdict.correction = self.target.regenerate(draft, verdict)
        return verdict


def verify(rule: Rule, draft: Draft, evidence: Evidence, keys: Keys) -> tuple[Rule, Verdict]:
    rule = rule.rule_for(draft, evidence)
    rule.check_evidence(evidence)
    rule.check(draft)
    weights = rule.weigh(evidence, draft)
    shape = (draft.batch, draft.tree.nodes)
    # no uniforms are needed for a root alone, nor in a greedy request, where all thresholds are 0 or 1
    is_certain = evidence.greedy or shape[1] == 1
    uniform = weights.threshold.new_zeros(shape) if is_certain else keys.uniform(Purpose.ACCEPT, shape[1])
    verdict = rule.select(weights, uniform, draft)
    return rule, rule.resample(evidence, draft, weights, verdict, keys)


def run_to_end(start: Callable[[], DecodingRun], stopped: Callable[[], bool] = lambda: False) -> DecodingRun:
    """Decode until `stopped` is true after a round. The statistics hold the seconds of the whole call."""
    started = perf_counter()
    run = start()
    while run.step() and not stopped():
        pass
    run.stats.close(perf_counter() - started)
    return run


def attention_of_changing_shapes(device: torch.device) -> AbstractContextManager[object]:
    """Return a block without cuDNN's attention on a GPU. cuDNN plans anew for every shape, which changes from pass to
    pass. So a drafter's step in bfloat16 took 20 ms on an H100, and 1.3 ms in float32, where cuDNN is not chosen."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
