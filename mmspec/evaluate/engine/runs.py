"""Timed requests: one run, and several methods on the same cases in turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from mmspec.core.stats import Stats

Case = TypeVar("Case")

# what a peer's decoding loop was seen to raise on inputs it cannot take; anything else is a bug here and ends the bench
FAILURES = (ValueError, TypeError, RuntimeError, IndexError, AttributeError)


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One timed request.

    seconds: wall time of the whole call.   output: what was generated, per row; exact methods are compared by it.
    target_passes: passes of the target, the prompt's among them.   accept_length: tokens per target pass and row.
    parts: seconds by name (prefill, draft, target, verify, other), of methods that report them.
    exact: as the method itself reports it.   drafter_passes: forward passes of the drafter's model.
    row_passes: target passes each row took part in, of methods that count them.   rounds: that the decode time is split
    over; None for the target's passes behind the prefill.
    prefill: seconds up to the first token, None where they are not known.   peak_bytes: memory beyond the model's, None
    where it was not measured.
    """

    seconds: float
    output: tuple[tuple[Hashable, ...], ...]
    target_passes: int
    accept_length: float
    parts: Mapping[str, float] | None = None
    exact: bool = True
    drafter_passes: int = 0
    row_passes: tuple[int, ...] = ()
    rounds: int | None = None
    accepted: tuple[tuple[int | None, ...], ...] = ()
    prefill: float | None = None
    peak_bytes: int | None = None

    @property
    def decode_seconds(self) -> float | None:
        """Seconds behind the prefill; None where they are not known."""
        prefill = self.prefill if self.parts is None else self.parts["prefill"]
        return None if prefill is None else self.seconds - prefill

    @property
    def decode_tokens(self) -> int:
        """Tokens behind the first of every row, which the prefill gives."""
        return self.tokens - len(self.output)

    @property
    def decode_rounds(self) -> int:
        """Rounds behind the prefill; 0 where there was nothing else."""
        return self.target_passes - 1 if self.rounds is None else self.rounds

    @property
    def tokens(self) -> int:
        """Tokens, or whatever the units are, over all rows."""
        return sum(map(len, self.output))


@dataclass(frozen=True, slots=True)
class Failure:
    """A request the method could not do; reason: one line."""

    reason: str


Attempt = TimedRun | Failure
Timed = TypeVar("Timed", bound=TimedRun)
Runner = Callable[[Case, int], TimedRun]
Sampler = Callable[[Case, int], tuple[TimedRun, list]]


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


def completed(attempts: Sequence[Sequence[Attempt]]) -> list[TimedRun]:
    """The runs among [case][repeat] attempts."""
    return [one for case in attempts for one in case if isinstance(one, TimedRun)]


def failures(attempts: Sequence[Sequence[Attempt]]) -> list[Failure]:
    """The failures among [case][repeat] attempts."""
    return [one for case in attempts for one in case if isinstance(one, Failure)]


def runner_or_failure(make: Callable[[], Runner]) -> Runner:
    """The runner that `make` returns; one that raises the reason where what it needs is missing."""
    try:
        return make()
    except (ImportError, ValueError) as error:
        reason = str(error)

        def fails(case: Case, seed: int) -> TimedRun:
            raise ValueError(reason)

        return fails


def parts_of(stats: Stats, seconds: float) -> dict[str, float]:
    """Seconds of a call by part; `other` is all that the engine did not attribute."""
    parts = stats.seconds()
    return {**parts, "other": max(seconds - sum(parts.values()), 0.0)}


def row_passes(stats: Stats) -> tuple[int, ...]:
    """Target passes each image took part in, the prompt's among them."""
    return tuple(sum(kept[row] is not None for kept in stats.accepted) for row in range(len(stats.emitted)))


def timed_run(
    stats: Stats, output: tuple[tuple[Hashable, ...], ...], seconds: float, kind: type[Timed] = TimedRun, /, **more: Any
) -> Timed:
    """A request through our own loop, as its statistics report it.   kind, more: the class and its other fields."""
    fields: dict[str, Any] = {
        "target_passes": stats.target_passes,
        "accept_length": stats.accept_length,
        "parts": parts_of(stats, seconds),
        "exact": stats.exact,
        "drafter_passes": stats.drafter_passes,
        "accepted": tuple(map(tuple, stats.accepted)),
    }
    return kind(seconds=seconds, output=output, **fields | more)


def raise_errors(errors: Mapping[int, str]) -> None:
    """Raises ValueError where rows of a request failed."""
    if errors:
        raise ValueError("; ".join(errors.values()))


@contextmanager
def counted_passes(network: nn.Module) -> Iterator[list[int]]:
    """A list that grows by one with every forward pass of `network` inside the block."""
    passes: list[int] = []
    hook = network.register_forward_pre_hook(lambda *given: passes.append(1))
    try:
        yield passes
    finally:
        hook.remove()


def without_output(sampler: Sampler) -> Runner:
    """A sampler as benches run it, which look at figures and not at what was made."""
    return lambda case, seed: sampler(case, seed)[0]
