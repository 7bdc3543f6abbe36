"""Timed requests: one run, and several methods on the same cases in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

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
    where it was not measured.   more: what only its domain's rows are made of, in plain JSON.
    count: tokens, where `output` holds a hash of them.
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
    more: Mapping[str, Any] = field(default_factory=dict)
    count: int | None = None

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
        return sum(map(len, self.output)) if self.count is None else self.count


@dataclass(frozen=True, slots=True)
class Failure:
    """A request the method could not do; reason: one line."""

    reason: str


Attempt = TimedRun | Failure
Runner = Callable[[Case, int], TimedRun]
Sampler = Callable[[Case, int], tuple[TimedRun, list]]


def attempt(runner: Runner, case: Case, seed: int) -> Attempt:
    """Runs once; what the method raises becomes a Failure."""
    try:
        return runner(case, seed)
    except FAILURES as error:
        message = " ".join(str(error).split())[:300]
        return Failure(f"{type(error).__name__}: {message}" if message else type(error).__name__)


class Turns(Generic[Case]):
    """Methods on one case after another, in turn, so that slow drifts of the machine meet all methods alike.

    makers: a function that returns the runner of a method, by name. It is called before the method's first request, which is
    run untimed first; where it raises since parts are missing, requests fail with that reason.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Callable[[Case, int], Any]]]):
        self.makers = dict(makers)
        self._runners: dict[str, Callable[[Case, int], Any]] = {}

    def warm_up(self, name: str, case: Case, seed: int) -> None:
        """Run a method untimed unless it has run already."""
        if name not in self._runners:
            self._runners[name] = runner_or_failure(self.makers[name])
            attempt(self._runners[name], case, seed)

    def round(self, case: Case, seed: int, first: int, names: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Run these methods on a case.   first: the number of the method, of all, that begins."""
        order = list(self.makers)
        first %= len(order)
        for name in order[first:] + order[:first]:
            if name in names:
                self.warm_up(name, case, seed)
                yield name, attempt(self._runners[name], case, seed)


class SampleStore(Protocol):
    """Where the samples of timed methods are kept as they come."""

    def find(self, name: str, case: int, repeat: int) -> Attempt | None:
        """The sample of a method, None where there is none yet."""

    def add(self, name: str, case: int, repeat: int, seed: int, attempt: Attempt) -> Attempt:
        """Keep a sample; the sample as a later run finds it."""


def interleave(
    cases: Sequence[Case],
    runners: Mapping[str, Runner],
    *,
    repeats: int = 1,
    seed: int = 0,
    on_run: Callable[[str], None] = lambda name: None,
    store: SampleStore | None = None,
) -> dict[str, list[list[Attempt]]]:
    """Every method on every case, case by case, see `Turns`.

    The order of the methods rotates from case to case and from repeat to repeat. Each method first runs the first case
    once, untimed. The seed of a request depends on its case and repeat only. Returns [method][case][repeat].
    store: samples that it has are not run again.
    """
    if not cases or repeats < 1:
        raise ValueError(f"expected cases and repeats of at least 1, got {len(cases)} and {repeats}, raise them")
    places = [(index, repeat) for repeat in range(repeats) for index in range(len(cases))]
    samples: dict[tuple, Attempt | None] = {
        (name, *place): None if store is None else store.find(name, *place) for place in places for name in runners
    }
    turns: Turns[Case] = Turns({name: lambda run=run: run for name, run in runners.items()})
    for name in runners:
        if any(samples[name, *place] is None for place in places):
            turns.warm_up(name, cases[0], seed)
        on_run(name)
    for index, repeat in places:
        own_seed = seed + index + repeat * len(cases)
        missing = [name for name in runners if samples[name, index, repeat] is None]
        for name, one in turns.round(cases[index], own_seed, index + repeat, missing):
            samples[name, index, repeat] = one if store is None else store.add(name, index, repeat, own_seed, one)
            on_run(name)
        for name in runners.keys() - set(missing):
            on_run(name)
    return {
        name: [[samples[name, index, repeat] for repeat in range(repeats)] for index in range(len(cases))]
        for name in runners
    }


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


def timed_run(stats: Stats, output: tuple[tuple[Hashable, ...], ...], seconds: float, **more: Any) -> TimedRun:
    """A request through our own loop, as its statistics report it.   more: other fields."""
    fields: dict[str, Any] = {
        "target_passes": stats.target_passes,
        "accept_length": stats.accept_length,
        "parts": parts_of(stats, seconds),
        "exact": stats.exact,
        "drafter_passes": stats.drafter_passes,
        "accepted": tuple(map(tuple, stats.accepted)),
    }
    return TimedRun(seconds=seconds, output=output, **fields | more)


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
