"""A drafter's prediction beside the target's own: what training compares."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Prediction:
    """What a drafter said at n places of one depth, and what the target says there.

    student, teacher: float32 [n, V], log-weights of the next token; a drafter of a reduced vocabulary is compared on it.
    feature, truth: float [n, H], the predicted and the true hidden state; None where a drafter predicts none.
    token: int64 [n], the token that follows in the text (an index of V).   depth: from 0.
    """

    student: Tensor
    teacher: Tensor
    token: Tensor
    depth: int
    feature: Tensor | None = None
    truth: Tensor | None = None
