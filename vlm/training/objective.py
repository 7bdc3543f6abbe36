"""A drafter's loss over every depth it will draft at, made of plug-in terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction
from mmspec.vlm.training.chunked_losses import Predict, TermLosses, term_losses
from mmspec.vlm.training.losses import Loss
from mmspec.vlm.training.teacher import VlmTeacherBatch
from mmspec.vlm.training.teacher_scores import TeacherScores


@dataclass(frozen=True, slots=True)
class Objective:
    """sum over depths d of decay**d times the weighted sum of the terms, or the mean of it over all places.

    EAGLE's paper trains one step. Here every depth d is trained on the drafter's own features of depth d - 1, as "HASS" and
    EAGLE-3's training-time test do, because a draft is as deep as its weakest level; depths=1 is EAGLE's training, depths=2
    one multi-token step of ViSpec.

    terms: pairs of a weight and a function of Prediction (see `losses.py`).   decay: weight of depth d is decay ** d.
    over_depths: "mean" takes one mean over the places of all depths, as public code that lays the depths side by side
        does; the sum is as many times larger as there are depths, so that bounds on gradients bind earlier.
    """

    terms: tuple[tuple[float, Loss], ...]
    depths: int = 4
    decay: float = 0.9
    over_depths: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        if self.depths < 1 or not 0 < self.decay <= 1 or not self.terms or self.over_depths not in ("sum", "mean"):
            raise ValueError("expected depths >= 1, 0 < decay <= 1, at least one term and over_depths sum or mean, got "
                             f"{self}; change them")  # fmt: skip

    def __call__(
        self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss of one batch, a scalar that carries gradients, and its notes: per depth, how often the top token is the
        target's (`hit0`, `hit1`...).   progress: share of training done, for objectives that change with it."""
        return self.over(predictions(drafter, parts, batch, self.depths), batch.embeds.device)

    def over(self, made: Sequence[DepthPredictions], device: torch.device) -> tuple[Tensor, dict[str, float]]:
        """Loss and notes of the predictions of each depth, computed in chunks of places."""
        loss, notes = torch.zeros((), device=device), {}
        share = [self.decay**one.depth for one in made]
        if self.over_depths == "mean":
            places = [weight * one.count for weight, one in zip(share, made, strict=True)]
            share = [count / (sum(places) or 1.0) for count in places]
        factors, terms = zip(*self.terms, strict=True)
        for weight, one in zip(share, made, strict=True):
            losses = one.losses(terms, device)
            loss = loss + weight * losses.mean(factors)
            notes[f"hit{one.depth}"] = float(losses.hits.float().mean()) if one.count else 0.0
        return loss, notes


@dataclass(frozen=True, slots=True)
class DepthPredictions:
    """Predictions of one depth that are computed where they are used, a chunk of places at a time.

    Attributes:
        depth: From 0.
        count: The number of places.
        vocabulary: The number of scores that a place has.
        predict: The predictions at places int64 [n].
    """

    depth: int
    count: int
    vocabulary: int
    predict: Predict

    @classmethod
    def of(cls, made: DraftPrediction) -> Self:
        """Predictions that exist already."""
        return cls(made.depth, len(made.token), made.student.shape[-1], made.at)

    def whole(self) -> DraftPrediction:
        """The predictions at all places at the same time."""
        return self.predict(torch.arange(self.count))

    def at(self, places: Tensor) -> Self:
        """The predictions at some of the places, int64 [n]."""
        return replace(self, count=len(places), predict=lambda chosen: self.predict(places[chosen]))

    def losses(self, terms: Sequence[Loss], device: torch.device) -> TermLosses:
        """The terms of a loss at every place."""
        return term_losses(self.predict, self.count, self.vocabulary, terms, device)


def check_reach(objective: object, drafter: object) -> None:
    """Raises ValueError where drafting would use weights that the objective never trains.

    objective: anything with `depths`.
    """
    if objective.depths < drafter.own_depths:
        raise ValueError(f"objective: expected depths of at least {drafter.own_depths}, as many as the drafter has weights "
                         f"of their own for, got {objective.depths}; train deeper, or a smaller drafter")  # fmt: skip


def predictions(drafter: nn.Module, parts: object, batch: VlmTeacherBatch, depths: int) -> list[DepthPredictions]:
    """The drafter's predictions of every answer token, at each depth.

    At depth d, a draft that started d tokens earlier predicts the token from the true pairs up to there. A drafter of a
    reduced vocabulary is compared on its tokens at every place, as in the `speculators` library; EAGLE-3's public code leaves
    out the places where the target's best token is none of them.
    """
    view = drafter.embedded(batch.prompt_view(parts), batch.ids)
    slots = drafter.read(view)
    origin = slots.origin
    after = (origin + 2).clamp(max=batch.ids.shape[1] - 1)  # slot j predicts token j + 2
    wanted = batch.answer.gather(1, after) & (origin >= 0) & (origin + 2 < batch.ids.shape[1])
    if not bool(wanted.any()):
        return []
    # slots further left only serve as keys
    first = max(int(wanted.any(0).float().argmax()) - depths, 0)
    outputs = drafter.unroll(slots, view, first, depths)
    origin, after, wanted = origin[:, first:], after[:, first:], wanted[:, first:]
    row, slot = wanted.nonzero(as_tuple=True)
    place = torch.full_like(origin, -1)
    place[row, slot] = torch.arange(len(row), device=place.device)
    truth = batch.last[row, origin[row, slot] + 1]
    teacher = TeacherScores.of(parts.head, truth, drafter.vocabulary)

    def depth_predictions(depth: int, out: Tensor, inside: Tensor) -> DepthPredictions:
        rows, columns = inside.nonzero(as_tuple=True)
        at, states = place[rows, columns], out[rows, columns]
        token = teacher.columns(batch.ids[rows, after[rows, columns]])

        def predict(chosen: Tensor) -> DraftPrediction:
            there = at[chosen]
            return drafter.prediction(states[chosen], depth, parts, teacher(there), token[chosen], truth[there])

        return DepthPredictions(depth, len(rows), teacher.width, predict)

    made = []
    for depth, out in enumerate(outputs):
        inside = wanted.clone()
        # a draft that started d slots earlier ran over text alone
        inside[:, :depth] = False
        inside[:, depth:] &= origin[:, depth:] - origin[:, : origin.shape[1] - depth] == depth
        if bool(inside.any()):
            made.append(depth_predictions(depth, out, inside))
    return made
