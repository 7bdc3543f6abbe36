"""The loss of a drafter over several depths, composed of terms."""

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
    """The sum over depths d of decay**d times the weighted sum of the terms, or its mean over the places of all depths.

    EAGLE's paper trains a single step. Here every depth d is trained on the drafter's own features of depth d - 1, as
    in "HASS" and EAGLE-3's training-time test, because drafts use those features. depths=1 is EAGLE's training,
    depths=2 a multi-token step of ViSpec. "mean" averages over the places of all depths, as public code does that
    concatenates them. "sum" is larger by the number of depths, so gradients are clipped earlier."""

    terms: tuple[tuple[float, Loss], ...]  # of a weight and a Loss, see `losses.py`
    depths: int = 4
    decay: float = 0.9
    over_depths: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        if self.depths < 1 or not 0 < self.decay <= 1 or not self.terms or self.over_depths not in ("sum", "mean"):
            raise ValueError(
                "expected depths >= 1, 0 < decay <= 1, at least one term and over_depths sum or mean, got "
                f"{self}; change them"
            )

    def __call__(
        self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, a scalar with gradients, and per depth the share of places with the target's top
        token (`hit0`, `hit1`...). `progress` is the completed share of training, for objectives that change with it."""
        return self.over(predictions(drafter, parts, batch, self.depths), batch.embeds.device)

    def over(self, depths: Sequence[DepthPredictions], device: torch.device) -> tuple[Tensor, dict[str, float]]:
        """Return loss and notes of the predictions of each depth, computed in chunks of places."""
        loss, notes = torch.zeros((), device=device), {}
        share = [self.decay**depth.depth for depth in depths]
        if self.over_depths == "mean":
            places = [weight * depth.count for weight, depth in zip(share, depths, strict=True)]
            share = [count / (sum(places) or 1.0) for count in places]
        factors, terms = zip(*self.terms, strict=True)
        for weight, depth in zip(share, depths, strict=True):
            losses = depth.losses(terms, device)
            loss = loss + weight * losses.mean(factors)
            notes[f"hit{depth.depth}"] = float(losses.hits.float().mean()) if depth.count else 0.0
        return loss, notes


@dataclass(frozen=True, slots=True)
class DepthPredictions:
    """The predictions of a depth, computed when they are used, a chunk of places at a time."""

    depth: int  # from 0
    count: int
    vocabulary: int  # scores of a place
    predict: Predict  # the prediction at places int64 [n]

    @classmethod
    def of(cls, prediction: DraftPrediction) -> Self:
        return cls(prediction.depth, len(prediction.token), prediction.student.shape[-1], prediction.at)

    def whole(self) -> DraftPrediction:
        return self.predict(torch.arange(self.count))

    def at(self, places: Tensor) -> Self:
        """Return the predictions at some of the places, int64 [n]."""
        return replace(self, count=len(places), predict=lambda chosen: self.predict(places[chosen]))

    def losses(self, terms: Sequence[Loss], device: torch.device) -> TermLosses:
        return term_losses(self.predict, self.count, self.vocabulary, terms, device)


def check_reach(objective: object, drafter: object) -> None:
    """Check that the objective, an object with `depths`, trains all weights of the drafter."""
    if objective.depths < drafter.own_depths:
        raise ValueError(
            f"objective: expected depths of at least {drafter.own_depths}, as the drafter has separate weights "
            f"for them, got {objective.depths}; train deeper, or a smaller drafter"
        )


def predictions(drafter: nn.Module, parts: object, batch: VlmTeacherBatch, depths: int) -> list[DepthPredictions]:
    """Return the drafter's predictions of every answer token at each depth. At depth d, a draft that started d tokens
    earlier from the true pairs until then predicts the token. A drafter with a reduced vocabulary is compared on its
    own tokens at every place, as in the `speculators` library; EAGLE-3's public code excludes places whose best target
    token is outside."""
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

    result = []
    for depth, out in enumerate(outputs):
        inside = wanted.clone()
        # the draft that started d slots earlier must have crossed text alone
        inside[:, :depth] = False
        inside[:, depth:] &= origin[:, depth:] - origin[:, : origin.shape[1] - depth] == depth
        if bool(inside.any()):
            result.append(depth_predictions(depth, out, inside))
    return result
