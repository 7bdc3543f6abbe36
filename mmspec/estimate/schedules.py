"""Schedules that overlap drafting and verification, simulated by one clock: nothing here is measured on two devices.

Acceptance is drawn from the curve by a seed, so that all schedules see the same luck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from mmspec.estimate.acceptance import AcceptanceCurve

LABEL = "simulated"
_VALUES = 4000  # that a simulation emits


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of the steps.

    Attributes:
        draft: A drafter's step, which drafts a value.
        verify: A pass of the target by the values that it judges; 0 gives a plain pass.
        transfer: Between two devices.
    """

    draft: float
    verify: Callable[[int], float]
    transfer: float = 0.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """A schedule on the clock.

    Attributes:
        schedule: Its name.
        devices: That it needs.
        seconds: Of a value.
        speedup: Plain decoding's seconds over these.
        note: The assumptions.
    """

    schedule: str
    devices: int
    seconds: float
    speedup: float
    note: str


class AcceptedDraws:
    """Accepted values of drafts, drawn from a curve."""

    def __init__(self, curve: AcceptanceCurve, seed: int):
        self.curve, self.random = curve, Random(seed)

    def accepted(self, length: int, start: int = 0) -> int:
        """Return how many of `length` values are accepted, the first of them at position `start` of its draft."""
        for n in range(length):
            if self.random.random() >= self.curve.at(start + n):
                return n
        return length


def ordinary(times: Durations, luck: AcceptedDraws, length: int) -> tuple[float, int]:
    """A round of draft, then verification, on one device: seconds and values."""
    return length * times.draft + times.verify(length), luck.accepted(length) + 1


def pearl(times: Durations, luck: AcceptedDraws, length: int, values: int) -> float:
    """PEARL: the target verifies a draft during the next draft, and its first value during the draft itself.

    Args:
        times: Of the steps.
        luck: The accepted values.
        length: Values of a draft.
        values: To emit.

    Returns:
        Seconds of a value.
    """
    clock, emitted, judged_later = 0.0, 0, False
    both = max(length * times.draft, times.verify(length)) + times.transfer
    first = max(length * times.draft, times.verify(1)) + times.transfer
    while emitted < values:
        if not judged_later:  # pre-verify: a wrong first value is replaced at once
            clock += first
            judged_later = luck.accepted(1) == 1
            emitted += 1
        else:  # post-verify: the values behind the first, beside the next draft
            clock += both
            accepted = luck.accepted(length - 1, 1)
            judged_later = accepted == length - 1 and luck.accepted(1) == 1
            emitted += accepted + 1
    return clock / emitted


def mirror(times: Durations, luck: AcceptedDraws, length: int, values: int, hit: float, early: float) -> float:
    """Mirror-SD: from an early exit on, a second device drafts a branch for each likely outcome of the verification.

    Args:
        times: Of the steps.
        luck: The accepted values.
        length: Values of a draft.
        values: To emit.
        hit: The chance that the outcome is among the branches.
        early: The share of the pass before the exit.
    """
    clock, emitted, ready = 0.0, 0, False
    late = (1 - early) * times.verify(length)
    while emitted < values:
        drafting = max(length * times.draft + times.transfer - late, 0.0) if ready else length * times.draft
        clock += drafting + times.verify(length)
        emitted += luck.accepted(length) + 1
        ready = luck.random.random() < hit
    return clock / emitted


def easyspec(times: Durations, luck: AcceptedDraws, length: int, values: int, group: int) -> float:
    """EasySpec: `group` layers of the drafter run at once on as many devices, and one exact pass over accepted values mends
    its cache; acceptance is taken as it was."""
    clock = emitted = 0.0
    while emitted < values:
        accepted = luck.accepted(length)
        clock += length * (times.draft / group + times.transfer) + times.draft + times.verify(length)
        emitted += accepted + 1
    return clock / emitted


def faser(times: Durations, luck: AcceptedDraws, length: int, values: int, chunks: int) -> float:
    """FASER: the verification of a draft begins chunk by chunk while the rest of it is still drafted, on one device whose
    passes are bound by memory. The target's passes over chunks follow one another."""
    clock = emitted = 0.0
    size = -(-length // chunks)
    while emitted < values:
        accepted, drafted, ended, judged = luck.accepted(length), 0, 0.0, 0.0
        while drafted < length:
            part = min(size, length - drafted)
            ended += part * times.draft
            judged = max(judged, ended) + times.verify(part)
            drafted += part
            if accepted < drafted:  # later chunks need no judging
                break
        clock += judged
        emitted += accepted + 1
    return clock / emitted


def simulate(
    times: Durations, curve: AcceptanceCurve, length: int, *, hit: float = 0.5, early: float = 0.5, group: int = 4,
    chunks: int = 2, seed: int = 0, values: int = _VALUES,
) -> list[Simulated]:  # fmt: skip
    """All schedules on the same costs and acceptance.

    Args:
        times: Of the steps.
        curve: The acceptance.
        length: Values of a draft.
        hit, early: See `mirror`.
        group: See `easyspec`.
        chunks: See `faser`.
        seed: Of the accepted values.
        values: That each simulation emits.

    Returns:
        A line a schedule, ordinary rounds first.
    """
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
        ("Mirror-SD", 2, mirror(times, AcceptedDraws(curve, seed), length, values, hit, early),
         f"exit after {early:.0%} of the pass, branch at hand {hit:.0%} of the time"),
        ("EasySpec", group, easyspec(times, AcceptedDraws(curve, seed), length, values, group),
         f"{group} drafter layers at once, acceptance as without"),
        ("FASER", 1, faser(times, AcceptedDraws(curve, seed), length, values, chunks),
         f"{chunks} chunks, drafting and judging overlap freely"),
    )  # fmt: skip
    return [Simulated(name, devices, seconds, plain / seconds, note) for name, devices, seconds, note in lines]
