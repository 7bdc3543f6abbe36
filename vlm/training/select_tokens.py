"""Training on the tokens a drafter has most to gain from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.vlm.drafters.prediction import Prediction
from mmspec.vlm.training.losses import forward_kl
from mmspec.vlm.training.objective import Objective, predictions
from mmspec.vlm.training.teacher_pass import TeacherBatch


@dataclass(frozen=True, slots=True)
class SelectTokens:
    """An Objective over a share of the places: those where the drafter is furthest behind a reference drafter ("AdaSPEC:
    Selective Knowledge Distillation for Efficient Speculative Decoders").

    Of the places of each depth in a batch, ceil(share * n) stay: those with the largest gap KL(p || q) - KL(p || r) between
    the drafter's law q and the reference's r against the target's p. A place that neither can learn has a small gap and is
    left to the target. The paper selects among the tokens of a batch of one-step predictions; here each depth selects its own,
    since deeper predictions are worse throughout.

    reference: a frozen drafter of the same kind for the same target, in the paper one that was distilled on all tokens.
    share: 0.4 in the paper's experiments; 1 is the objective itself.
    """

    objective: Objective
    reference: nn.Module
    share: float = 0.4

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: expected above 0 and at most 1, got {self.share}")

    @property
    def depths(self) -> int:
        """How deep the objective goes."""
        return self.objective.depths

    def __call__(
        self, drafter: nn.Module, parts: object, batch: TeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss and notes as of Objective; hits are those of the places that stay.

        Raises ValueError for a reference that predicts at other places, which a drafter of another kind may.
        """
        made = predictions(drafter, parts, batch, self.objective.depths)
        with torch.no_grad():
            others = predictions(self.reference, parts, batch, self.objective.depths)
        if [(g.depth, len(g.token)) for g in made] != [(g.depth, len(g.token)) for g in others]:
            raise ValueError(
                f"reference: expected a drafter that predicts where this one does, got {type(self.reference).__name__} "
                f"for {type(drafter).__name__}; train one of the same kind and sizes"
            )
        kept = [select(mine, other, self.share) for mine, other in zip(made, others, strict=True)]
        return self.objective.over(kept, batch.embeds.device)


@torch.no_grad()
def gap(prediction: Prediction, reference: Prediction) -> Tensor:
    """By how much the drafter is behind the reference at every place, float32 [n]."""
    return forward_kl.places(prediction) - forward_kl.places(reference)


def select(prediction: Prediction, reference: Prediction, share: float) -> Prediction:
    """The prediction at its ceil(share * n) places of the largest gap."""
    count = math.ceil(share * len(prediction.token))
    place = gap(prediction, reference).topk(count).indices
    feature = None if prediction.feature is None else prediction.feature[place]
    truth = None if prediction.truth is None else prediction.truth[place]
    return Prediction(
        prediction.student[place], prediction.teacher[place], prediction.token[place], prediction.depth, feature, truth
    )
