"""The loss of block-parallel drafters: blocks behind anchors that every step draws anew."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.block_unroll import AnchoredBlocks, unroll_anchored_blocks
from mmspec.vlm.drafters.base.prompt_slots import picture_numbers
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction
from mmspec.vlm.training.losses import Loss, hard_cross_entropy
from mmspec.vlm.training.teacher import VlmTeacherBatch


@dataclass(frozen=True, slots=True)
class BlockObjective:
    """The weighted loss of all levels of `anchors` blocks a row. An anchor is an answer's token that another token follows;
    level i of its block predicts the token i + 1 behind it, as far as the answer reaches.

    Args:
        terms: As in `Objective`.
        weights: "decay" is exp(-i / gamma) for level i from 0, as in "DFlash". "dpace" is the gain of a level's token in
            expected accepted length, see `dpace_weights`.
        gamma: None for (block size - 1) / 2, as published for 8 and 16.
        alpha: Of D-PACE.
        per: The divisor of the weighted sum: the sum of the weights (SpecForge), the number of levels that count
            (`speculators`), or the rows of the batch (SpecForge's D-PACE).
    """

    terms: tuple[tuple[float, Loss], ...] = ((1.0, hard_cross_entropy),)
    anchors: int = 512
    weights: Literal["decay", "dpace"] = "decay"
    gamma: float | None = None
    alpha: float = 0.5
    per: Literal["weight", "place", "row"] = "weight"

    def __post_init__(self) -> None:
        if self.anchors < 1 or not 0 <= self.alpha <= 1 or (self.gamma is not None and self.gamma <= 0):
            raise ValueError(
                f"expected anchors of at least 1, alpha within 0 and 1 and gamma above 0, got {self}; change them"
            )
        if self.weights not in ("decay", "dpace") or self.per not in ("weight", "place", "row") or not self.terms:
            raise ValueError(
                f"expected weights decay or dpace, per weight, place or row and at least one term, got {self}"
            )

    @property
    def depths(self) -> float:
        """All levels a drafter has."""
        return math.inf

    def __call__(
        self, drafter: BlockDrafter, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss and notes as of Objective. Draws anchors from torch's generator."""
        anchor, drawn = draw_anchors(batch.answer, self.anchors)
        if not bool(drawn.any()):
            return batch.embeds.new_zeros(()), {}
        said = predict_blocks(drafter, parts, batch, anchor, drawn)
        return self.over(said, len(anchor)), said.hits()

    def over(self, said: BlockPredictions, rows: int) -> Tensor:
        """The loss of what blocks said, a scalar.   rows: of the batch."""
        levels = said.counts.shape[1]
        if self.weights == "dpace":
            weight = dpace_weights(said.likelihood, said.counts, self.alpha)
        else:
            level = torch.arange(levels, device=said.counts.device)
            weight = torch.exp(-level / (self.gamma or default_gamma(levels))) * said.counts
        total = {"weight": weight.sum(), "place": said.counts.sum(), "row": weight.new_tensor(rows)}[self.per]
        return (weight * said.losses(self.terms)).sum() / total.clamp(min=1e-6)


def default_gamma(drafted: int) -> float:
    """7 for blocks that draft 15, 4 for 7, and between these and beyond on a line."""
    return max(4 + (drafted - 7) * 3 / 8, 1.0)


def draw_anchors(answer: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """At most `most` anchors a row, evenly among the tokens of answers that another one follows: slots int64 [B, A], in order,
    and which are real, bool [B, A].   answer: bool [B, T]."""
    free = answer.clone()
    free[:, :-1] &= answer[:, 1:]
    free[:, -1] = False
    width = min(most, max(int(free.sum(1).max()), 1))
    order = torch.rand(free.shape, device=free.device).masked_fill(~free, -1.0).topk(width, -1)
    slot, place = order.indices.sort(-1)
    return slot, order.values.gather(1, place) >= 0


@dataclass(slots=True)
class BlockPredictions:
    """What blocks said at each level. student, teacher: float32 [N, D, V].   token: int64 [N, D].   counts: bool [N, D].
    acceptance: float [N, D], the logits of being accepted, where the drafter predicts it.
    """

    student: Tensor
    teacher: Tensor
    token: Tensor
    counts: Tensor
    acceptance: Tensor | None = None

    @property
    def likelihood(self) -> Tensor:
        """float32 [N, D], the drafter's probability of the text's token."""
        return self.student.detach().log_softmax(-1).gather(-1, self.token[..., None])[..., 0].exp()

    def losses(self, terms: tuple[tuple[float, Loss], ...]) -> Tensor:
        """float32 [N, D], the terms' weighted sum, 0 where a level does not count. Predicted acceptance adds its cross-entropy
        with the share of the drafter's law that the target's takes ("DSpark")."""
        made = DraftPrediction(self.student[self.counts], self.teacher[self.counts], self.token[self.counts], 0)
        places = sum(factor * term.places(made) for factor, term in terms)
        if self.acceptance is not None:
            overlap = torch.minimum(made.student.detach().softmax(-1), made.teacher.softmax(-1)).sum(-1)
            said = self.acceptance[self.counts].float()
            places = places + F.binary_cross_entropy_with_logits(said, overlap, reduction="none")
        return torch.zeros_like(self.counts, dtype=torch.float32).masked_scatter(self.counts, places.float())

    def hits(self) -> dict[str, float]:
        """Per level, how often the top token is the target's."""
        right = (self.student.argmax(-1) == self.teacher.argmax(-1)) & self.counts
        share = right.sum(0) / self.counts.sum(0).clamp(min=1)
        return {f"hit{level}": value for level, value in enumerate(share.tolist())}


def predict_blocks(
    drafter: BlockDrafter, parts: object, batch: VlmTeacherBatch, anchor: Tensor, drawn: Tensor
) -> BlockPredictions:
    """What the blocks behind `anchor` int64 [B, A], where `drawn`, say and should have said."""
    real = torch.ones_like(batch.answer) if batch.padding is None else ~batch.padding
    position, document = (real.cumsum(1) - 1).clamp(min=0), real.long() - 1
    shown = None if drafter.pool is None else picture_numbers(batch.ids, parts.placeholders, parts.tokens_per_image)
    rows = unroll_anchored_blocks(
        drafter, parts.embed, AnchoredBlocks(batch.ids, anchor, position, document, shown), batch.hidden
    )
    rows = drafter.drafting(rows)[drawn]  # [N, D, H]
    levels = torch.arange(1, rows.shape[1] + 1, device=anchor.device)
    place = anchor[..., None] + levels
    inside = place < batch.ids.shape[1]
    place = place.clamp(max=batch.ids.shape[1] - 1)
    line = torch.arange(len(anchor), device=anchor.device)[:, None, None]
    counts = (inside & batch.answer[line, place])[drawn]
    student, made = drafter.teacher_forced(rows, batch.ids[line, place - 1][drawn], parts.head)
    with torch.no_grad():
        teacher = parts.head(batch.last[line, place - 1][drawn]).float()
    return BlockPredictions(student, teacher, batch.ids[line, place][drawn], counts, drafter.acceptance(made.detach()))


@torch.no_grad()
def dpace_weights(likelihood: Tensor, counts: Tensor, alpha: float) -> Tensor:
    """D-PACE's weights, float32 [N, D]: w_j = sum over m >= j of prod over i <= m of (1 - alpha) q_i + alpha ("D-PACE"): how
    much of the expected accepted length hangs on level j. A level that does not count adds nothing and stops nothing, as in
    the public codes.

    likelihood: float32 [N, D], q.   counts: bool [N, D].
    """
    smooth = torch.where(counts, (1 - alpha) * likelihood + alpha, 1.0)
    stands = smooth.cumprod(-1) * counts
    return stands.flip(-1).cumsum(-1).flip(-1) * counts
