"""Classifier-free guidance of a head, a scale per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from mmspec.core.arguments import LARGEST_SCALE, check_fields, number
from mmspec.imagegen.continuous.mar.order import Step

Schedule = Literal["linear", "constant"]


@dataclass(frozen=True, slots=True)
class TokenGuidance:
    """scale: s; at exactly 1 only the conditional branch is run.   schedule: "constant", or "linear" from about 1 at the
    first token to s at the last: 1 + (s - 1) (total - masked) / total, with what a step leaves masked.

    Raises ValueError for a scale outside 0..1000 and an unknown schedule.
    """

    scale: float = 1.0
    schedule: Schedule = "linear"

    def __post_init__(self) -> None:
        number("guidance_scale", self.scale, 0, LARGEST_SCALE)
        check_fields(self)
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"guidance_schedule: expected one of {', '.join(get_args(Schedule))}, got {self.schedule!r}; use "
                             "one of these")  # fmt: skip

    @property
    def paired(self) -> bool:
        """Whether the unconditional branch runs too."""
        return self.scale != 1

    def at(self, masked: int, total: int) -> float:
        """The scale of a step that leaves `masked` of `total` tokens masked."""
        return self.scale if self.schedule == "constant" else 1 + (self.scale - 1) * (total - masked) / total

    def by_rank(self, steps: Sequence[Step], total: int) -> Tensor:
        """float32 [total], the scale of the token at each rank of the order, whoever decides it and when."""
        scales = torch.empty(total)
        for step in steps:
            scales[step.first : step.last] = self.at(step.masked, total)
        return scales
