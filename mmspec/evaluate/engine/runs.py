"""Timed requests: single runs, and several methods in turn on the same cases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from mmspec.run.timed_run import TimedRun

Case = TypeVar("Case")

# exceptions that other decoding loops raise on unsupported inputs; any other exception is a bug here and ends the bench
FAILURES = (ValueError, TypeError, RuntimeError, IndexError, AttributeError)


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that a method could not run, and the reason in one line."""

    reason: str


Attempt = TimedRun | Failure
Runner = Callable[[Case, int], TimedRun]
Sampler = Callable[[Case, int], tuple[TimedRun, list]]


def attempt(runner: Runner, case: Case, seed: int) -> Attempt:
    """Run a method once; an expected exception becomes a Failure."""
    try:
        return runner(case, seed)
    except FAILURES as error:
        message = " ".join(str(error).split())[:300]
        return Failure(f"{type(error).__name__}: {message}" if message else type(error).__name__)


class Turns(Generic[Case]):
    """Runs several methods in turn on each case, so that slow drifts of the machine affect them alike. A method is
    built and warmed up with an untimed run before its first request. If its parts are missing, its requests fail with
    that reason."""

    def __init__(self, makers: Mapping[str, Callable[[], Callable[[Case, int], Any]]]):
        self.makers = dict(makers)
        self._runners: dict[str, Callable[[Case, int], Any]] = {}

    def warm_up(self, name: str, case: Case, seed: int) -> None:
        """Run a method once without timing, unless it has run already."""
        if name not in self._runners:
            self._runners[name] = runner_or_failure(self.makers[name])
            attempt(self._runners[name], case, seed)

    def round(self, case: Case, seed: int, first: int, names: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Run methods on a case and yield (name, result). Of all methods, the number `first` runs first."""
        order = list(self.makers)
        first %= len(order)
        for name in order[first:] + order[:first]:
            if name in names:
                self.warm_up(name, case, seed)
                yield name, attempt(self._runners[name], case, seed)


class SampleStore(Protocol):
    """A store of the samples of timed methods."""

    def find(self, name: str, case: int, repeat: int) -> Attempt | None:
        """Return the sample of a method; None if there is none yet."""

    def add(self, name: str, case: int, repeat: int, seed: int, attempt: Attempt) -> Attempt:
        """Store a sample and return it as a later run will read it."""


def interleave(
    cases: Sequence[Case],
    runners: Mapping[str, Runner],
    *,
    repeats: int = 1,
    seed: int = 0,
    on_run: Callable[[str], None] = lambda name: None,
    store: SampleStore | None = None,
) -> dict[str, list[list[Attempt]]]:
    """Run every method on every case, case by case, see `Turns`; return [method][case][repeat]. The order of the
    methods rotates from case to case and from repeat to repeat. Each method first runs the first case once, untimed.
    The seed of a request depends on its case and repeat only. Samples in `store` are not run again; `on_run` is called
    with the method's name for every request."""
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
        for name, outcome in turns.round(cases[index], own_seed, index + repeat, missing):
            samples[name, index, repeat] = (
                outcome if store is None else store.add(name, index, repeat, own_seed, outcome)
            )
            on_run(name)
        for name in runners.keys() - set(missing):
            on_run(name)
    return {
        name: [[samples[name, index, repeat] for repeat in range(repeats)] for index in range(len(cases))]
        for name in runners
    }


def completed(attempts: Sequence[Sequence[Attempt]]) -> list[TimedRun]:
    return [run for case in attempts for run in case if isinstance(run, TimedRun)]


def failures(attempts: Sequence[Sequence[Attempt]]) -> list[Failure]:
    return [run for case in attempts for run in case if isinstance(run, Failure)]


def runner_or_failure(make: Callable[[], Runner]) -> Runner:
    """Return the runner that `make` builds, or a runner that raises the reason why it cannot be built."""
    try:
        return make()
    except (ImportError, ValueError) as error:
        reason = str(error)

        def fails(case: Case, seed: int) -> TimedRun:
            raise ValueError(reason)

        return fails
