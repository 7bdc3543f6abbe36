"""Paired, interleaved timing of several methods on the same cases, and the statistics of their ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mmspec.core.stats import Stats

Case = TypeVar("Case")

# what a peer's decoding loop was seen to raise on inputs it cannot take; anything else is a bug here and ends the bench
FAILURES = (ValueError, TypeError, RuntimeError, IndexError, AttributeError)

PARTS = ("draft", "target", "verify", "other")  # of the decode time
GREEDY, SAMPLED = ("greedy",), ("sampled",)


@dataclass(frozen=True, slots=True)
class Run:
    """One timed request.

    seconds: wall time of the whole call.   output: generated ids per row.
    target_passes: passes of the target, the prompt's among them.   accept_length: tokens per target pass and row.
    parts: seconds by name (prefill, draft, target, verify, other), of methods that report them.
    exact: as the method itself reports it.   drafter_passes: forward passes of the drafter's model.
    row_passes: target passes each row took part in, of methods that count them.
    """

    seconds: float
    output: tuple[tuple[int, ...], ...]
    target_passes: int
    accept_length: float
    parts: Mapping[str, float] | None = None
    exact: bool = True
    drafter_passes: int = 0
    row_passes: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens generated, over all rows."""
        return sum(map(len, self.output))


@dataclass(frozen=True, slots=True)
class Failure:
    """A request the method could not do; reason: one line."""

    reason: str


Attempt = Run | Failure
Runner = Callable[[Case, int], Run]


def attempt(runner: Runner, case: Case, seed: int) -> Attempt:
    """Runs once; what the method raises becomes a Failure."""
    try:
        return runner(case, seed)
    except FAILURES as error:
        message = " ".join(str(error).split())[:300]
        return Failure(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def interleave(
    cases: Sequence[Case],
    runners: Mapping[str, Runner],
    *,
    repeats: int = 1,
    seed: int = 0,
    on_run: Callable[[str], None] = lambda name: None,
) -> dict[str, list[list[Attempt]]]:
    """Every method on every case, case by case, so that slow drifts of the machine meet all methods alike.

    The order of the methods rotates from case to case and from repeat to repeat. Each method first runs the first case
    once, untimed. The seed of a request depends on its case and repeat only. Returns [method][case][repeat].
    """
    if not cases or repeats < 1:
        raise ValueError(f"expected cases and repeats of at least 1, got {len(cases)} and {repeats}, raise them")
    names = list(runners)
    for name in names:
        attempt(runners[name], cases[0], seed)
        on_run(name)
    results: dict[str, list[list[Attempt]]] = {name: [[] for _ in cases] for name in names}
    for repeat in range(repeats):
        for index, case in enumerate(cases):
            start = (index + repeat) % len(names)
            for name in names[start:] + names[:start]:
                results[name][index].append(attempt(runners[name], case, seed + index + repeat * len(cases)))
                on_run(name)
    return results


def completed(attempts: Sequence[Sequence[Attempt]]) -> list[Run]:
    """The runs among [case][repeat] attempts."""
    return [one for case in attempts for one in case if isinstance(one, Run)]


def failures(attempts: Sequence[Sequence[Attempt]]) -> list[Failure]:
    """The failures among [case][repeat] attempts."""
    return [one for case in attempts for one in case if isinstance(one, Failure)]


def paired_ratios(base: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> list[float]:
    """base seconds / own seconds of every case and repeat that both completed: above 1 where `own` is faster.

    Seconds are per emitted token: two exact methods may sample texts of different lengths. Equal texts make no
    difference.
    """
    pairs = [pair for case in zip(base, own, strict=True) for pair in zip(*case, strict=True)]
    both = [(a, b) for a, b in pairs if isinstance(a, Run) and isinstance(b, Run)]
    return [a.seconds * b.tokens / (b.seconds * a.tokens) for a, b in both]


def middle(values: Sequence[float], digits: int = 3) -> float | None:
    """The median, rounded; None of nothing."""
    return round(float(np.median(values)), digits) if len(values) else None


def spread(values: Sequence[float], digits: int = 3) -> list[float] | None:
    """The 10th and 90th percentile, rounded; None of nothing."""
    return [round(float(v), digits) for v in np.percentile(values, [10, 90])] if len(values) else None


def mean(values: Sequence[float]) -> float | None:
    """The mean, rounded; None of nothing."""
    return round(sum(values) / len(values), 3) if values else None


def time_split(runs: Sequence[Run]) -> dict:
    """Shares of the decode time (the call less the prefill) and milliseconds per round, by part."""
    split = [run for run in runs if run.parts is not None and run.target_passes > 1]
    row: dict = {}
    total = sum(run.seconds - run.parts["prefill"] for run in split)
    rounds = sum(run.target_passes - 1 for run in split)
    for part in PARTS:
        seconds = sum(run.parts[part] for run in split)
        row[f"{part}_share"] = round(seconds / total, 4) if split else None
        row[f"{part}_ms"] = round(1000 * seconds / rounds, 3) if split else None
    row["prefill_ms"] = middle([1000 * run.parts["prefill"] for run in split], 3)
    return row


def identical(peer: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> str | None:
    """How many requests gave the peer's output, as "29/30"; None where none of them was completed by both."""
    pairs = [pair for case in zip(peer, own, strict=True) for pair in zip(*case, strict=True)]
    both = [(a, b) for a, b in pairs if isinstance(a, Run) and isinstance(b, Run)]
    return f"{sum(a.output == b.output for a, b in both)}/{len(both)}" if both else None


def parts_of(stats: Stats, seconds: float) -> dict[str, float]:
    """Seconds of a call by part; `other` is all that the engine did not attribute."""
    parts = {name: getattr(stats, f"{name}_s") for name in ("prefill", "draft", "target", "verify")}
    return {**parts, "other": max(seconds - sum(parts.values()), 0.0)}
