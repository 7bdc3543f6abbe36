"""Simulated schedules that overlap drafting and verification, on one clock; they are not measured on two devices.
Acceptance is sampled from the curve with a seed, so that all schedules accept the same values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from mmspec.estimate.acceptance import AcceptanceCurve

LABEL = "simulated"
_VALUES = 4000  # values per simulation


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of the steps."""

    draft: float  # of a drafter's step, which drafts a value
    verify: Callable[[int], float]  # of a target pass, by judged values; 0 gives a plain pass
    transfer: float = 0.0  # between two devices


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a simulated schedule."""

    schedule: str
    devices: int  # that it needs
    seconds: float  # a value
    speedup: float  # plain decoding's seconds over these
    note: str  # its assumptions


class AcceptedDraws:
    """Numbers of accepted values, sampled from a curve."""

    def __init__(self, curve: AcceptanceCurve, seed: int):
        self.curve, self.random = curve, Random(seed)

    def accepted(self, length: int, start: int = 0) -> int:
        """Sample how many of `length` values are accepted; the first value has position `start` in its draft."""
        for n in range(length):
            if self.random.random() >= self.curve.at(start + n):
                return n
        return length


def ordinary(times: Durations, luck: AcceptedDraws, length: int) -> tuple[float, int]:
    """Return seconds and values of a round of draft, then verification, on one device."""
    return length * times.draft + times.verify(length), luck.accepted(length) + 1


def pearl(times: Durations, luck: AcceptedDraws, length: int, values: int) -> float:
    """PEARL: the target judges a draft during the next draft, and the draft's first value while the draft is computed.
    Return the seconds a value, over `values` values with drafts of `length` values."""
    clock, emitted, judged_later = 0.0, 0, False
    both = max(length * times.draft, times.verify(length)) + times.transfer
    first = max(length * times.draft, times.verify(1)) + times.transfer
    while emitted < values:
        if not judged_later:  # pre-verify: a rejected first value is replaced at once
            clock += first
            judged_later = luck.accepted(1) == 1
            emitted += 1
        else:  # post-verify: the later values, during the next draft
            clock += both
            accepted = luck.accepted(length - 1, 1)
            judged_later = accepted == length - 1 and luck.accepted(1) == 1
            emitted += accepted + 1
    return clock / emitted


def mirror(times: Durations, luck: AcceptedDraws, length: int, values: int, hit: float, early: float) -> float:
    """Mirror-SD: after an early exit, at the share `early` of the pass, a second device drafts a branch for each likely
    outcome of the verification. `hit` is the chance that a branch has the outcome. Return the seconds a value."""
    clock, emitted, ready = 0.0, 0, False
    late = (1 - early) * times.verify(length)
    while emitted < values:
        drafting = max(length * times.draft + times.transfer - late, 0.0) if ready else length * times.draft
        clock += drafting + times.verify(length)
        emitted += luck.accepted(length) + 1
        ready = luck.random.random() < hit
    return clock / emitted


def easyspec(times: Durations, luck: AcceptedDraws, length: int, values: int, group: int) -> float:
    """EasySpec: `group` layers of the drafter run at once on as many devices. An exact pass over the accepted values
    repairs the drafter's cache. The acceptance rate is assumed unchanged."""
    clock = emitted = 0.0
    while emitted < values:
        accepted = luck.accepted(length)
        clock += length * (times.draft / group + times.transfer) + times.draft + times.verify(length)
        emitted += accepted + 1
    return clock / emitted


def faser(times: Durations, luck: AcceptedDraws, length: int, values: int, chunks: int) -> float:
    """FASER: the target verifies a draft in chunks while the rest is still drafted, on one device. Its passes are
    memory-bound, and passes over chunks run in sequence."""
    clock = emitted = 0.0
    size = -(-length // chunks)
    while emitted < values:
        accepted, drafted, ended, judged = luck.accepted(length), 0, 0.0, 0.0
        while drafted < length:
            part = min(size, length - drafted)
            ended += part * times.draft
            judged = max(judged, ended) + times.verify(part)
            drafted += part
            if accepted < drafted:  # later chunks are dropped
                break
        clock += judged
        emitted += accepted + 1
    return clock / emitted


def simulate(
    times: Durations,
    curve: AcceptanceCurve,
    length: int,
    *,
    hit: float = 0.5,
    early: float = 0.5,
    group: int = 4,
    chunks: int = 2,
    seed: int = 0,
    values: int = _VALUES,
) -> list[Simulated]:
    """Return all schedules on the same costs and acceptance, ordinary rounds first. The arguments are those of
    `mirror`, `easyspec` and `faser`; each simulation emits `values` values."""
    plain = times.verify(0)

    def rounds() -> float:
        luck, clock, emitted = AcceptedDraws(curve, seed), 0.0, 0
        while emitted < values:
            seconds, count = ordinary(times, luck, length)
            clock, emitted = clock + seconds, emitted + count
        return clock / emitted

    lines = (
        ("draft, then verify", 1, rounds(), "one device"),
        ("PEARL", 2, pearl(times, AcceptedDraws(curve, seed), length, values), "drafter and target on a device each"),
        (
            "Mirror-SD",
            2,
            mirror(times, AcceptedDraws(curve, seed), length, values, hit, early),
            f"exit after {early:.0%} of the pass, branch available {hit:.0%} of the time",
        ),
        (
            "EasySpec",
            group,
            easyspec(times, AcceptedDraws(curve, seed), length, values, group),
            f"{group} drafter layers at once, unchanged acceptance",
        ),
        (
            "FASER",
            1,
            faser(times, AcceptedDraws(curve, seed), length, values, chunks),
            f"{chunks} chunks, drafting and judging overlap freely",
        ),
    )
    return [Simulated(name, devices, seconds, plain / seconds, note) for name, devices, seconds, note in lines]
