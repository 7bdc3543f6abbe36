"""Glancing: a block drafter in training is shown some of the pairs it would have got wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.vlm.training.objective import Objective, predictions
from mmspec.vlm.training.teacher_pass import TeacherBatch


@dataclass(frozen=True, slots=True)
class Glancing:
    """An Objective run twice ("Falcon: Faster and Parallel Inference of Large Language Models through Enhanced
    Semi-Autoregressive Drafting and Custom-Designed Decoding Tree").

    A pass without gradients counts how many tokens of the batch the drafter gets wrong (averaged over the depths); then
    lambda times as many of the pairs that drafts read are the target's own in the pass that trains. What a draft reads are
    the pairs of blocks before the one predicted, so the objective has to be deeper than one block.

    lambda = slope * (1 - progress) + floor. The paper has 0.4 * (E - e) / E at epoch e of E, which is the default; the
    public code 0.35 * (E - e) / E + 0.1, and picks among block starts only. Here as in the paper any pair of the answers may
    be picked. A drafter of any kind with blocks (`Flash`) can be trained so; Falcon's LSTM drafter is not built.
    """

    objective: Objective
    slope: float = 0.4
    floor: float = 0.0

    def __post_init__(self) -> None:
        if min(self.slope, self.floor) < 0 or self.slope + self.floor > 1:
            raise ValueError(f"expected slope and floor >= 0 that sum to at most 1, got {self.slope} and {self.floor}")

    @property
    def depths(self) -> int:
        """How deep the objective goes."""
        return self.objective.depths

    def __call__(
        self, drafter: nn.Module, parts: object, batch: TeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss and notes as of Objective, with the share of pairs shown as `shown`. Draws from torch's generator.

        progress: share of training done, 0 to 1.
        Raises ValueError for a drafter without blocks, and an objective that never leaves the first block.
        """
        block = getattr(drafter, "block", None)
        if block is None or self.objective.depths <= block:
            raise ValueError(
                f"glancing: expected a drafter of blocks and depths above its block, got block {block} and depths "
                f"{self.objective.depths}; train deeper, or without glancing"
            )
        reveal = self._reveal(drafter, parts, batch, self.slope * (1 - progress) + self.floor)
        if reveal is not None:
            drafter = _Shown(drafter, reveal)
        loss, notes = self.objective(drafter, parts, batch, progress)
        shown = 0.0 if reveal is None else float(reveal.sum() / batch.answer[:, 1:].sum())
        return loss, {**notes, "shown": shown}

    @torch.no_grad()
    def _reveal(self, drafter: nn.Module, parts: object, batch: TeacherBatch, share: float) -> Tensor | None:
        """bool [B, T - 1], the pairs shown; None for none."""
        made = predictions(drafter, parts, batch, self.objective.depths) if share else []
        wrong = sum(int((g.student.argmax(-1) != g.teacher.argmax(-1)).sum()) for g in made)
        pairs = batch.answer[:, 1:]  # pair j holds the embedding of token j + 1
        count = min(round(share * wrong / max(len(made), 1)), int(pairs.sum()))
        if not count:
            return None
        order = torch.rand(pairs.shape, device=pairs.device).masked_fill(~pairs, -1.0).flatten()
        reveal = torch.zeros_like(pairs)
        reveal.view(-1)[order.topk(count).indices] = True
        return reveal


class _Shown:
    """The drafter, told which pairs to read with the target's states while it is unrolled."""

    def __init__(self, drafter: nn.Module, reveal: Tensor):
        self.drafter, self.reveal = drafter, reveal

    def unroll(self, slots: object, view: object, first: int, depths: int) -> list[Tensor]:
        return self.drafter.unroll(slots, view, first, depths, self.reveal)

    def __getattr__(self, name: str) -> object:
        return getattr(self.drafter, name)
