"""What a drafter alone costs: reading the prompt, a step, a round; timed with nothing else going on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from torch import Tensor, nn

from mmspec import vlm
from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.evaluate.engine.statistics import middle

READINGS = 3  # of every prompt


class _TimedDrafter:
    """A drafter whose calls are timed.   opened: seconds per reading of a prompt.   rows: slots its cache then holds."""

    def __init__(self, drafter: object):
        self.drafter, self.name, self.levels = drafter, drafter.name, getattr(drafter, "levels", None)
        self.opened: list[float] = []
        self.rows: list[int] = []
        self.rounds: list[tuple[float, int]] = []  # seconds and levels of every draft

    def open(self, target: object) -> _TimedDraftState:
        for _ in range(READINGS):
            began = perf_counter()
            state = self.drafter.open(target)
            self.opened.append(perf_counter() - began)
        lengths = getattr(getattr(state, "cache", None), "lengths", None)
        self.rows += [max(lengths)] if lengths else []
        return _TimedDraftState(state, self.rounds)


class _TimedDraftState:
    def __init__(self, state: object, rounds: list[tuple[float, int]]):
        self.state, self.rounds, self.observed = state, rounds, 0.0

    @property
    def passes(self) -> int:
        return self.state.passes

    def propose(self, target: object, keys: Keys) -> Draft:
        began = perf_counter()
        draft = self.state.propose(target, keys)
        self.rounds.append((perf_counter() - began + self.observed, draft.tree.max_depth))
        return draft

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        began = perf_counter()
        self.state.observe(target, draft, evidence, verdict)
        self.observed = perf_counter() - began


def drafter_costs(model: nn.Module, drafter: object, cases: Sequence[Mapping[str, Tensor]], **generation) -> dict:
    """Medians over the rounds of one request per case.

    drafter_prefill_ms: reading the prompt.   drafter_round_ms: one draft, with what is read of the round before.
    drafter_step_ms: that by level of the draft.   drafter_cost_ms: prefill and one round.   drafter_rows: slots in the
    drafter's cache behind the prompt, None for one without a cache.
    """
    timed = _TimedDrafter(drafter)
    for seed, inputs in enumerate(cases):
        vlm.start(model, drafter=timed, seed=seed, **inputs, **generation).run()
    drafted = [(seconds, depth) for seconds, depth in timed.rounds if depth]
    prefill = middle([1000 * seconds for seconds in timed.opened])
    round_ = middle([1000 * seconds for seconds, _ in drafted])
    return {
        "drafter_prefill_ms": prefill,
        "drafter_round_ms": round_,
        "drafter_step_ms": middle([1000 * seconds / depth for seconds, depth in drafted]),
        "drafter_cost_ms": None if round_ is None else round(prefill + round_, 3),
        "drafter_rows": middle(timed.rows, 1),
    }
