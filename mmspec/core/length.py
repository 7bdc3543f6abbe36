"""Draft length control: each decision precedes the draw of its value, so that sampled drafts keep their distribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Verdict
from mmspec.core.sampling import law_of
from mmspec.io.validation import check_fields
from mmspec.methods import method


@lru_cache(maxsize=64)
def doubling_lengths(deepest: int) -> tuple[int, ...]:
    """Return 1, 3, 7... and `deepest`: drafts that fill passes of 2, 4, 8... nodes, the root included."""
    lengths = [2**power - 1 for power in range(1, deepest.bit_length() + 1)]
    return tuple(length for length in lengths if length < deepest) + (deepest,)


class Growth(Protocol):
    """The decisions for one draft: it grows and is never pruned.

    Whether a value is drawn may depend on everything drawn before it, in any branch. A value that was drawn stays: a
    draft that is cut or reranked by its own values loses the target's distribution.
    """

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        """Return whether each row draws another value, bool [B].

        Args:
            step: The values drawn so far.
            confidence: float [B], the largest probability of the next distribution. It must not depend on the value
                that will be drawn, which would bias the distribution.
            feature: float [B, H], the drafter's hidden state behind this distribution, which has read all values so
                far; None from drafters without such states.
        """


class LengthControl(Protocol):
    """A controller of draft lengths.

    A controller with the methods of `RequestControl` adapts to each request.

    Attributes:
        longest: An upper bound, from which static shapes are made.
    """

    longest: int

    def begin(self) -> Growth | None:
        """Return the decisions for one draft; None where every row grows to `longest`."""


class RequestControl(LengthControl, Protocol):
    """A controller that learns from the verdicts of a request."""

    def for_request(self, target: object) -> RequestControl:
        """Return the controller of a new request."""

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Read the verdict of a round. Captured rounds have no such controllers, so it may read the device."""


def control_for(control: LengthControl, target: object) -> LengthControl:
    """Return the controller of a request: the controller itself, unless it adapts to each request."""
    make = getattr(control, "for_request", None)
    return control if make is None else make(target)


def learn_lengths(control: LengthControl | None, draft: Draft, verdict: Verdict) -> None:
    """Show a round to a controller that learns from verdicts."""
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
    """Return the decision of `Growth.grow` before a value is drawn, bool [B].

    A growth with a method `measure` gets that measure of the distribution as its confidence.

    Args:
        growth: The decisions of the draft.
        step: The values drawn so far.
        scores: float32 [B, V], the log-weights of the next value.
        feature: See `Growth.grow`.
    """
    measure = getattr(growth, "measure", None)
    law = law_of(scores)
    return growth.grow(step, law.amax(-1) if measure is None else measure(law), feature)


def show_drawn(growth: Growth | None, scores: Tensor, column: Tensor) -> None:
    """Show the probability of a drawn value, float [B], to a growth with a method `drew`.

    Args:
        growth: The decisions of the draft.
        scores: float32 [B, V], the log-weights of the value.
        column: int64 [B], the column of the value in `scores`.
    """
    drew = getattr(growth, "drew", None)
    if drew is not None:
        drew(law_of(scores).gather(-1, column[:, None])[:, 0])


@method(
    "fixed", domain=("vlm", "image"), kind="controller", title="fixed length", exact=True, order=0,
    about="every draft has as many values",
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class FixedLength:
    """Drafts of a constant length.

    Args:
        longest: The values of a draft.
    """

    longest: int = 5

    def __post_init__(self) -> None:
        check_fields(self)
        if self.longest < 1:
            raise ValueError(f"longest: expected at least 1, got {self.longest}")

    def begin(self) -> None:
        return None


@method(
    "confidence", domain=("vlm", "image"), kind="controller", title="confidence stop", exact=True, order=1,
    about="a draft ends where the drafter is unsure of the next value",
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class ConfidenceStop:
    """Stops a row where the drafter's largest probability falls below a threshold.

    Args:
        threshold: The probability that the likeliest next value needs.
        longest: The most values of a draft.
        shortest: The fewest values of a draft.
    """

    threshold: float = 0.4
    longest: int = 8
    shortest: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold: expected a probability, got {self.threshold}")
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"shortest: expected 1 <= shortest <= longest, got {self.shortest} and {self.longest}")

    def begin(self) -> ConfidenceStop:
        return self

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        if step >= self.longest:
            return confidence < 0
        return (confidence >= self.threshold) | (step < self.shortest)
