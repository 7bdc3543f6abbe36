"""A request that is decoded plainly and with drafts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from mmspec.run.timed_run import TimedRun, first_difference
from mmspec.run.vlm_runs import Inputs, run_ours


@dataclass(frozen=True, slots=True)
class Comparison:
    plain: TimedRun
    drafted: TimedRun

    @property
    def identical(self) -> bool:
        return self.plain.output == self.drafted.output

    @property
    def first_difference(self) -> int | None:
        """The first value of any row that differs, counted from 1; None where none does."""
        places = map(first_difference, self.plain.output, self.drafted.output)
        return min((place for place in places if place is not None), default=None)

    @property
    def speedup(self) -> float:
        """The ratio of seconds a value, plain to drafted."""
        return (self.plain.seconds / self.plain.tokens) / (self.drafted.seconds / self.drafted.tokens)


def compare(
    model: nn.Module, inputs: Inputs, drafter: object, tokens: int, warm: int, **generation: object
) -> Comparison:
    """Decode a request for text plainly and with a drafter, in at most `tokens` tokens. `warm` tokens of both ways come
    before, untimed."""
    for way in (None, drafter):
        run_ours(model, inputs, 0, way, "exact", max_new_tokens=min(warm, tokens), **generation)
    runs = [run_ours(model, inputs, 0, way, "exact", max_new_tokens=tokens, **generation) for way in (None, drafter)]
    return Comparison(*runs)
