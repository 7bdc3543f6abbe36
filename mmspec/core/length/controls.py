from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Verdict
from mmspec.core.round.sampling import law_of
from mmspec.io.validation import Share, Size, check_fields
from mmspec.methods import method


@lru_cache(maxsize=64)
def doubling_lengths(deepest: int) -> tuple[int, ...]:
    """Return 1, 3, 7... and `deepest`: drafts that fill passes of 2, 4, 8... nodes, the root included."""
    lengths = [2**power - 1 for power in range(1, deepest.bit_length() + 1)]
    return tuple(length for length in lengths if length < deepest) + (deepest,)


class Growth(Protocol):
    """The decisions for one draft: it grows and is never pruned. Whether a value is drawn may depend on everything
    drawn before it, in any branch. A drawn value stays: a draft cut or reranked by its own values loses the target's
    distribution."""

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        """Return whether each row draws another value after `step` values, bool [B]. `confidence` [B] is the largest
        probability of the next distribution. It must not depend on the value to be drawn, which would bias the
        distribution. `feature` [B, H] is the hidden state behind it, which has read all values so far; None from
        drafters without such states."""


class LengthControl(Protocol):
    """A controller of draft lengths; with the methods of `RequestControl` it adapts to each request."""

    longest: int  # an upper bound, from which static shapes are made

    def begin(self) -> Growth | None:
        """Return None where every row grows to `longest`."""


class RequestControl(LengthControl, Protocol):
    def for_request(self, target: object) -> RequestControl:
        """Return the controller of a new request."""

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Captured rounds have no such controllers, so it may read the device."""


def control_for(control: LengthControl, target: object) -> LengthControl:
    make = getattr(control, "for_request", None)
    return control if make is None else make(target)


def learn_lengths(control: LengthControl | None, draft: Draft, verdict: Verdict) -> None:
    learn = getattr(control, "learn", None)
    if learn is not None and draft.tree.nodes > 1:
        learn(draft, verdict)


def outcomes(draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor]:
    """Return how many values of a chain were accepted and how many were drawn, int64 [B] each; copies do not count."""
    drawn = torch.ones_like(draft.value, dtype=torch.bool) if draft.valid is None else draft.valid.clone()
    if draft.law.copies is not None:
        drawn &= ~draft.law.copies.node
    count = drawn[:, 1:].sum(-1)
    return verdict.depth.minimum(count), count


def grow_by(growth: Growth, step: int, scores: Tensor, feature: Tensor | None) -> Tensor:
    """Return the decision of `Growth.grow`, bool [B], before a draw from log-weights float32 [B, V]. `step` counts the
    values drawn so far; `feature` as in `Growth.grow`. A growth with a method `measure` gets that as its confidence."""
    measure = getattr(growth, "measure", None)
    law = law_of(scores)
    return growth.grow(step, law.amax(-1) if measure is None else measure(law), feature)


def show_drawn(growth: Growth | None, scores: Tensor, column: Tensor) -> None:
    """Show the probability of a drawn value to a growth with a method `drew`; `column` int64 [B] indexes scores [B, V]."""
    drew = getattr(growth, "drew", None)
    if drew is not None:
        drew(law_of(scores).gather(-1, column[:, None])[:, 0])


@method(
    "fixed",
    domain=("vlm", "image"),
    kind="controller",
    title="fixed length",
    exact=True,
    order=0,
    about="every draft has as many values",
)
@dataclass(frozen=True, slots=True)
class FixedLength:
    """Drafts of a constant length.

    Args:
        longest: The values of a draft.
    """

    longest: Size = 5

    __post_init__ = check_fields

    def begin(self) -> None:
        return None


@method(
    "confidence",
    domain=("vlm", "image"),
    kind="controller",
    title="confidence stop",
    exact=True,
    order=1,
    about="a draft ends where the drafter is unsure of the next value",
)
@dataclass(frozen=True, slots=True)
class ConfidenceStop:
    """Stops a row where the drafter's largest probability falls below a threshold.

    Args:
        threshold: The probability that the likeliest next value needs.
        longest: The most values of a draft.
        shortest: The fewest values of a draft.
    """

    threshold: Share = 0.4
    longest: int = 8
    shortest: Size = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.shortest > self.longest:
            raise ValueError(f"shortest: expected 1 <= shortest <= longest, got {self.shortest} and {self.longest}")

    def begin(self) -> ConfidenceStop:
        return self

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        if step >= self.longest:
            return confidence < 0
        return (confidence >= self.threshold) | (step < self.shortest)
