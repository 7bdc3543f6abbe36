"""The loss of block-parallel drafters: blocks behind anchors that every step draws anew."""

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
    """The weighted loss of all levels of `anchors` blocks a row. An anchor is an answer's token that another token follows;
    level i of its block predicts the token i + 1 behind it, as far as the answer reaches.

    A drafter of a reduced vocabulary is compared with the target's law over the tokens that it holds, renormalised, at every
    level, as in the `speculators` library. Terms of the text's token alone leave out levels whose token it does not hold; a
    level that no term counts has no part of the divisor, and trains the predicted acceptance alone.

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
        total, notes = batch.embeds.new_zeros((), dtype=torch.float32), {}
        for weight, blocks in predict_lessons(drafter, parts, batch, anchor, drawn):
            loss, said = self.over(blocks, len(anchor))
            total, notes = total + weight * loss, notes or said
        return total, notes

    def over(self, blocks: BlockPredictions, rows: int) -> tuple[Tensor, dict[str, float]]:
        """Loss and notes of blocks in a batch of `rows` rows: per level, how often the top token is the target's."""
        made = term_losses(
            blocks.predict, len(blocks.token), blocks.width, [term for _, term in self.terms], blocks.token.device,
            partial(blocks.figures, likelihood=self.weights == "dpace"),
        )  # fmt: skip
        likelihood, overlap = made.figures.unbind(-1)
        losses, counted = made.weighted([factor for factor, _ in self.terms]), made.counted.any(-1)
        if blocks.acceptance is not None:
            predicted = blocks.acceptance.float()
            losses = losses + F.binary_cross_entropy_with_logits(predicted, overlap, reduction="none")
        weight = self._weights(blocks, blocks.grid(likelihood))
        total = {
            "weight": (weight * blocks.grid(counted)).sum(), "place": counted.sum(), "row": weight.new_tensor(rows),
        }[self.per]  # fmt: skip
        share = blocks.grid(made.hits & counted).sum(0) / blocks.counts.sum(0).clamp(min=1)
        notes = {f"hit{level}": value for level, value in enumerate(share.tolist())}
        return (weight * blocks.grid(losses)).sum() / total.clamp(min=1e-6), notes

    def _weights(self, blocks: BlockPredictions, likelihood: Tensor) -> Tensor:
        if self.weights == "dpace":
            return dpace_weights(likelihood, blocks.counts, self.alpha)
        levels = blocks.counts.shape[1]
        level = torch.arange(levels, device=blocks.counts.device)
        return torch.exp(-level / (self.gamma or default_gamma(levels))) * blocks.counts


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
    """The predictions of N blocks at P places, the levels that an answer reaches.

    Args:
        predict: The prediction at places int64 [n], see `term_losses`.
        counts: bool [N, D], which levels are places.
        place: Block and level of every place, int64 [P] each.
        token: int64 [P], the text's token among the scores, -100 where the drafter does not hold it.
        width: The larger number of scores a place, of drafter and target.
        acceptance: float [P], the logits of being accepted; None where the drafter does not predict acceptance.
        overlap: float32 [n] of drafter's and target's scores and places, the probability of being accepted.
    """

    predict: Callable[[Tensor], DraftPrediction]
    counts: Tensor
    place: tuple[Tensor, Tensor]
    token: Tensor
    width: int
    acceptance: Tensor | None = None
    overlap: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def grid(self, values: Tensor) -> Tensor:
        """float32 [N, D] of values [P], 0 elsewhere."""
        levels = torch.zeros(self.counts.shape, dtype=torch.float32, device=values.device)
        return levels.index_put(self.place, values.float())

    def figures(self, made: DraftPrediction, places: Tensor, likelihood: bool) -> Tensor:
        """float32 [n, 2]: the drafter's probability of the text's token where `likelihood`, and the overlap of the laws where
        acceptance is predicted; 0 otherwise."""
        found = torch.zeros(len(places), 2, device=places.device)
        if likelihood:
            chosen = made.student.log_softmax(-1).gather(-1, made.token.clamp(min=0)[:, None])[:, 0]
            found[:, 0] = chosen.exp() * (made.token >= 0)
        if self.acceptance is not None:
            found[:, 1] = self.overlap(made.student, made.teacher, places)
        return found


def predict_blocks(
    drafter: BlockDrafter, parts: object, batch: VlmTeacherBatch, anchor: Tensor, drawn: Tensor
) -> BlockPredictions:
    """The predictions along the texts alone, see `predict_lessons`."""
    return predict_lessons(drafter, parts, batch, anchor, drawn)[0][1]


def predict_lessons(
    drafter: BlockDrafter, parts: object, batch: VlmTeacherBatch, anchor: Tensor, drawn: Tensor
) -> list[tuple[float, BlockPredictions]]:
    """The predictions of the blocks behind `anchor` int64 [B, A], where `drawn`, each with the weight of its loss.

    Nothing as wide as the vocabulary is computed for all places at once. Places are in the order of the target's states, so
    that a chunk of them shares a pass of its head. The first predictions are those along the texts, see
    `BlockDrafter.lessons`.
    """
    real = torch.ones_like(batch.answer) if batch.padding is None else ~batch.padding
    position, document = (real.cumsum(1) - 1).clamp(min=0), real.long() - 1
    shown = None if drafter.pool is None else picture_numbers(batch.ids, parts.placeholders, parts.tokens_per_image)
    rows = unroll_anchored_blocks(
        drafter, parts.embed, AnchoredBlocks(batch.ids, anchor, position, document, shown), batch.hidden
    )
    # a text begins with its first token, which then stands for the token before it
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
        (found,) = map_chunks(
            lambda places: (drafter.scores(flat[places], parts.head).argmax(-1),), len(flat), drafter.width, flat.device
        )
        return values_of(found, drafter.vocabulary).view(features.shape[:2])

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
    """D-PACE's weights, float32 [N, D]: w_j = sum over m >= j of prod over i <= m of (1 - alpha) q_i + alpha ("D-PACE"): how
    much of the expected accepted length hangs on level j. A level that does not count adds nothing and stops nothing, as in
    the public codes.

    likelihood: float32 [N, D], q.   counts: bool [N, D].
    """
    smooth = torch.where(counts, (1 - alpha) * likelihood + alpha, 1.0)
    stands = smooth.cumprod(-1) * counts
    return stands.flip(-1).cumsum(-1).flip(-1) * counts
