"""The loss of block-parallel drafters, over the blocks after random anchors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.drafting.picks import values_of
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.block_unroll import AnchoredBlocks, unroll_anchored_blocks
from mmspec.vlm.drafters.base.prompt_slots import picture_numbers
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction
from mmspec.vlm.training.chunked_losses import map_chunks, term_losses
from mmspec.vlm.training.losses import Loss, hard_cross_entropy
from mmspec.vlm.training.teacher import VlmTeacherBatch
from mmspec.vlm.training.teacher_scores import TeacherScores


@dataclass(frozen=True, slots=True)
class BlockObjective:
    """The weighted loss of all levels of the blocks after random anchors, which are answer tokens with a successor.

    Level i of a block predicts the token i + 1 after its anchor, within the answer. A drafter with a reduced vocabulary
    is compared with the target's distribution over its tokens, renormalised, as in the `speculators` library. Terms of
    the text's token exclude levels whose token is outside the vocabulary. Without terms, only the predicted acceptance
    is trained. "decay" weighs level i from 0 by exp(-i / gamma), as in "DFlash"; "dpace" by the gain of its token in
    expected accepted length, see `dpace_weights`. The weighted sum is divided by the sum of weights (SpecForge), the
    number of included levels (`speculators`), or the rows of the batch (SpecForge's D-PACE)."""

    terms: tuple[tuple[float, Loss], ...] = ((1.0, hard_cross_entropy),)
    anchors: int = 512  # most of a row
    weights: Literal["decay", "dpace"] = "decay"
    gamma: float | None = None  # of "decay"; None for `default_gamma`
    alpha: float = 0.5  # the smoothing of "dpace"
    per: Literal["weight", "place", "row"] = "weight"  # the divisor

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
        """All levels of a drafter."""
        return math.inf

    def __call__(
        self, drafter: BlockDrafter, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Return loss and notes as Objective does; anchors are drawn from torch's generator."""
        anchor, drawn = draw_anchors(batch.answer, self.anchors)
        if not bool(drawn.any()):
            return batch.embeds.new_zeros(()), {}
        total, notes = batch.embeds.new_zeros((), dtype=torch.float32), {}
        for weight, blocks in predict_lessons(drafter, parts, batch, anchor, drawn):
            loss, hits = self.over(blocks, len(anchor))
            total, notes = total + weight * loss, notes or hits
        return total, notes

    def over(self, blocks: BlockPredictions, rows: int) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of blocks in a batch of `rows` rows, and per level the share with the target's top token."""
        values = term_losses(
            blocks.predict,
            len(blocks.token),
            blocks.width,
            [term for _, term in self.terms],
            blocks.token.device,
            partial(blocks.figures, likelihood=self.weights == "dpace"),
        )
        likelihood, overlap = values.figures.unbind(-1)
        losses, counted = values.weighted([factor for factor, _ in self.terms]), values.counted.any(-1)
        if blocks.acceptance is not None:
            predicted = blocks.acceptance.float()
            losses = losses + F.binary_cross_entropy_with_logits(predicted, overlap, reduction="none")
        weight = self._weights(blocks, blocks.grid(likelihood))
        total = {
            "weight": (weight * blocks.grid(counted)).sum(),
            "place": counted.sum(),
            "row": weight.new_tensor(rows),
        }[self.per]
        share = blocks.grid(values.hits & counted).sum(0) / blocks.counts.sum(0).clamp(min=1)
        notes = {f"hit{level}": value for level, value in enumerate(share.tolist())}
        return (weight * blocks.grid(losses)).sum() / total.clamp(min=1e-6), notes

    def _weights(self, blocks: BlockPredictions, likelihood: Tensor) -> Tensor:
        if self.weights == "dpace":
            return dpace_weights(likelihood, blocks.counts, self.alpha)
        levels = blocks.counts.shape[1]
        level = torch.arange(levels, device=blocks.counts.device)
        return torch.exp(-level / (self.gamma or default_gamma(levels))) * blocks.counts


def default_gamma(drafted: int) -> float:
    """Return the gamma of blocks with this number of draft tokens: linear, with 4 for 7 and 7 for 15 as published."""
    return max(4 + (drafted - 7) * 3 / 8, 1.0)


def draw_anchors(answer: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Draw at most `most` anchors a row uniformly among the tokens in `answer`, bool [B, T], with a successor. Return
    their slots in order, int64 [B, A], and whether each is real, bool [B, A]."""
    free = answer.clone()
    free[:, :-1] &= answer[:, 1:]
    free[:, -1] = False
    width = min(most, max(int(free.sum(1).max()), 1))
    order = torch.rand(free.shape, device=free.device).masked_fill(~free, -1.0).topk(width, -1)
    slot, place = order.indices.sort(-1)
    return slot, order.values.gather(1, place) >= 0


@dataclass(slots=True)
class BlockPredictions:
    """The predictions of N blocks at P places, the levels within an answer."""

    predict: Callable[[Tensor], DraftPrediction]  # the prediction at places int64 [n], see `term_losses`
    counts: Tensor  # bool [N, D], whether a level is a place
    place: tuple[Tensor, Tensor]  # the block and the level of every place, int64 [P] each
    token: Tensor  # int64 [P], the column of the text's token; -100 if it is outside the drafter's vocabulary
    width: int  # scores of a place, the larger of drafter and target
    acceptance: Tensor | None = None  # float [P], the logits of the predicted acceptance
    overlap: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None  # acceptance, float32 [n]

    def grid(self, values: Tensor) -> Tensor:
        """Return values [P] on a grid, float32 [N, D], with 0 elsewhere."""
        levels = torch.zeros(self.counts.shape, dtype=torch.float32, device=values.device)
        return levels.index_put(self.place, values.float())

    def figures(self, prediction: DraftPrediction, places: Tensor, likelihood: bool) -> Tensor:
        """Return float32 [n, 2] at places int64 [n]: the drafter's probability of the text's token, with `likelihood`,
        and the probability of acceptance if the drafter predicts it; 0 otherwise."""
        values = torch.zeros(len(places), 2, device=places.device)
        if likelihood:
            chosen = prediction.student.log_softmax(-1).gather(-1, prediction.token.clamp(min=0)[:, None])[:, 0]
            values[:, 0] = chosen.exp() * (prediction.token >= 0)
        if self.acceptance is not None:
            values[:, 1] = self.overlap(prediction.student, prediction.teacher, places)
        return values


def predict_lessons(
    drafter: BlockDrafter, parts: object, batch: VlmTeacherBatch, anchor: Tensor, drawn: Tensor
) -> list[tuple[float, BlockPredictions]]:
    """Return the predictions of the blocks after anchors in slots int64 [B, A], each with the weight of its loss; those
    along the texts come first, see `BlockDrafter.lessons`. `drawn` is bool [B, A], whether an anchor is real. No matrix
    over the vocabulary is computed for all places at once. Places are in the order of the target's states, so that a
    chunk of places shares a pass of the head."""
    real = torch.ones_like(batch.answer) if batch.padding is None else ~batch.padding
    position, document = (real.cumsum(1) - 1).clamp(min=0), real.long() - 1
    shown = None if drafter.pool is None else picture_numbers(batch.ids, parts.placeholders, parts.tokens_per_image)
    rows = unroll_anchored_blocks(
        drafter, parts.embed, AnchoredBlocks(batch.ids, anchor, position, document, shown), batch.hidden
    )
    # the first token of a text has no token before it and is used for it too
    earlier = batch.ids.gather(1, (anchor - 1).clamp(min=0))
    rows = drafter.drafting(rows, earlier)[drawn]  # [N, D, F]
    length = batch.ids.shape[1]
    after = anchor[..., None] + torch.arange(1, rows.shape[1] + 1, device=anchor.device)
    line = torch.arange(len(anchor), device=anchor.device)[:, None, None].expand_as(after)
    inside, after = after < length, after.clamp(max=length - 1)
    counts = (inside & batch.answer[line, after])[drawn]
    source = (line * length + after - 1)[drawn]  # [N, D], the state that predicts the token
    block, level = counts.nonzero(as_tuple=True)
    order = source[block, level].argsort(stable=True)
    block, level = block[order], level[order]
    states, state = source[block, level].unique(return_inverse=True)
    column = drafter.columns(batch.ids[line, after][drawn][block, level])
    token = torch.where(column < drafter.width, column, -100)

    @torch.no_grad()
    def best(features: Tensor) -> Tensor:
        flat = features.flatten(0, 1)
        (columns,) = map_chunks(
            lambda places: (drafter.scores(flat[places], parts.head).argmax(-1),), len(flat), drafter.width, flat.device
        )
        return values_of(columns, drafter.vocabulary).view(features.shape[:2])

    lessons = drafter.lessons(rows, batch.ids.flatten()[source], best)
    with_mass = drafter.acceptance(lessons[0][1][:0]) is not None
    teacher = TeacherScores.of(parts.head, batch.last.flatten(0, 1)[states], drafter.vocabulary, with_mass=with_mass)

    def predictions(features: Tensor) -> BlockPredictions:
        out = features[block, level]

        def predict(places: Tensor) -> DraftPrediction:
            student = drafter.scores(out[places], parts.head)
            return DraftPrediction(student, teacher(state[places]), token[places], 0)

        def overlap(student: Tensor, target: Tensor, places: Tensor) -> Tensor:
            return teacher.overlap(student, target, state[places])

        acceptance = drafter.acceptance(out.detach())
        return BlockPredictions(predict, counts, (block, level), token, drafter.width, acceptance, overlap)

    return [(weight, predictions(features)) for weight, features in lessons]


@torch.no_grad()
def dpace_weights(likelihood: Tensor, counts: Tensor, alpha: float) -> Tensor:
    """Return the level weights of "D-PACE", float32 [N, D]: the part of the expected accepted length that needs a
    level, w_j = sum over m >= j of prod over i <= m of (1 - alpha) q_i + alpha. `likelihood` is the drafter's
    probability q of each token, float32 [N, D]. A level outside `counts` adds nothing and ends nothing, as in the
    public code."""
    smooth = torch.where(counts, (1 - alpha) * likelihood + alpha, 1.0)
    accepted = smooth.cumprod(-1) * counts
    return accepted.flip(-1).cumsum(-1).flip(-1) * counts
