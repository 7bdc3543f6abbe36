"""A request that was run once: its values, passes and seconds."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from mmspec.core.round.stats import Stats


@dataclass(frozen=True, slots=True)
class TimedRun:
    seconds: float  # the wall time of the whole call
    output: tuple[tuple[Hashable, ...], ...]  # the generated values, row by row; exact methods are compared by it
    target_passes: int  # includes the prompt's
    accept_length: float  # the values per target pass and row
    # the seconds by part (prefill, draft, target, verify, other), of methods that report them
    parts: Mapping[str, float] | None = None
    exact: bool = True  # whether the method reports that it is exact
    drafter_passes: int = 0  # forward passes of the drafter's model
    row_passes: tuple[int, ...] = ()  # the target passes that each row took part in, of methods that count them
    rounds: int | None = None  # the rounds that share the decode time; None for the target's passes after the prefill
    # the accepted length of every round and row; None where a row took no part
    accepted: tuple[tuple[int | None, ...], ...] = ()
    prefill: float | None = None  # the seconds up to the first token; None if unknown
    peak_bytes: int | None = None  # the memory beyond the model's; None if not measured
    more: Mapping[str, Any] = field(default_factory=dict)  # for the domain's rows, plain JSON
    count: int | None = None  # the number of values, where `output` holds a hash of them

    @property
    def decode_seconds(self) -> float | None:
        """Return the seconds after the prefill; None if unknown."""
        prefill = self.prefill if self.parts is None else self.parts["prefill"]
        return None if prefill is None else self.seconds - prefill

    @property
    def decode_tokens(self) -> int:
        """Return the tokens after the first token of every row, which the prefill produces."""
        return self.tokens - len(self.output)

    @property
    def decode_rounds(self) -> int:
        """Return the rounds after the prefill; 0 if there were none."""
        return self.target_passes - 1 if self.rounds is None else self.rounds

    @property
    def tokens(self) -> int:
        """Return the number of generated values over all rows."""
        return sum(map(len, self.output)) if self.count is None else self.count


def timed_run(stats: Stats, output: tuple[tuple[Hashable, ...], ...], seconds: float, **more: Any) -> TimedRun:
    """Return the timed run of a request through our own loop, with `more` fields of `TimedRun`."""
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
    """Raise the errors of a request's rows."""
    if errors:
        raise ValueError("; ".join(errors.values()))


@contextmanager
def counted_passes(network: nn.Module) -> Iterator[list[int]]:
    """Yield a list that grows by one item with every forward pass of `network` inside the block."""
    passes: list[int] = []
    hook = network.register_forward_pre_hook(lambda *arguments: passes.append(1))
    try:
        yield passes
    finally:
        hook.remove()


def parts_of(stats: Stats, seconds: float) -> dict[str, float]:
    """Return the seconds of a call by part; `other` is the time that the engine did not attribute."""
    parts = stats.seconds()
    return {**parts, "other": max(seconds - sum(parts.values()), 0.0)}


def row_passes(stats: Stats) -> tuple[int, ...]:
    """Return the target passes of each row, including the prompt's."""
    return tuple(sum(lengths[row] is not None for lengths in stats.accepted) for row in range(len(stats.emitted)))


def first_difference(plain: Sequence[Hashable], drafted: Sequence[Hashable]) -> int | None:
    """Return the first value of a row that differs, counted from 1; None where none does."""
    for place, (mine, other) in enumerate(zip(plain, drafted, strict=False), 1):
        if mine != other:
            return place
    return None if len(plain) == len(drafted) else min(len(plain), len(drafted)) + 1


def figures_of(parts: Sequence[Stats], seconds: float, failed: Collection[int] = ()) -> dict:
    """Return the cost of a call of several requests, rounded once for the screen and the file; `seconds` is its wall
    time. The numbers of failed images are left out of means unless all have failed."""
    costs = [pair for stats in parts for pair in zip(row_passes(stats), stats.emitted, strict=True)]
    whole = [pair for number, pair in enumerate(costs) if number not in failed]
    passes, emitted = zip(*(whole or costs), strict=True)
    times = (*parts[0].seconds(), "other")
    return {
        "images": len(whole),
        "seconds": round(seconds, 3),
        "drafter": parts[0].drafter,
        "rule": parts[0].rule,
        "exact": all(stats.exact for stats in parts),
        "target_passes": round(sum(passes) / len(passes), 1),
        "plain_passes": round(sum(emitted) / len(emitted), 1),
        "step_compression": round(sum(emitted) / sum(passes), 3),
        "drafter_passes": sum(stats.drafter_passes for stats in parts),
        **{f"{part}_s": round(sum(getattr(stats, f"{part}_s") for stats in parts), 4) for part in times},
    }
