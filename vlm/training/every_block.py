"""Training a block drafter for every block length it may draft with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.vlm.training.glancing import Glancing
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.teacher_pass import TeacherBatch


@dataclass(frozen=True, slots=True)
class EveryBlock:
    """An objective of a block drafter, each step with another block length from 1 to the drafter's own, drawn evenly.

    One head then serves all of them: `Flash.with_block` drafts as it was trained.
    """

    objective: Objective | Glancing

    @property
    def depths(self) -> int:
        """How deep the objective goes."""
        return self.objective.depths

    def __call__(
        self, drafter: nn.Module, parts: object, batch: TeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss and notes as of the objective. Draws from torch's generator."""
        block = int(torch.randint(1, drafter.config.block + 1, ()))
        return self.objective(drafter.with_block(block), parts, batch, progress)
