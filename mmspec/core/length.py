"""Draft length control: each decision precedes the draw of its value, so that sampled drafts keep their distribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from torch import Tensor

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

    Attributes:
        longest: An upper bound, from which static shapes are made.
    """

    longest: int

    def begin(self) -> Growth | None:
        """Return the decisions for one draft; None where every row grows to `longest`."""


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
