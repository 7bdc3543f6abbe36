"""Terms a drafter's objective is made of: the loss of each of n places of a Prediction, and its mean.

Throughout, q is the drafter's law over the next token and p the target's, both of softmaxed log-weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, update_wrapper

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction

PlaceLosses = Callable[[DraftPrediction], Tensor]


class Loss:
    """A term: called, its mean over the places that count, a scalar; `places` gives the loss of each of them, float32 [n],
    0 where one does not count.

    Without such a place the mean is 0. Token selection (`select_tokens.py`) is made of `places`.
    counted: which places count, bool [n], of a prediction; None for all.
    joint: whether the loss of a place depends on the other places, so that they cannot be computed in chunks.
    """

    def __init__(self, places: PlaceLosses, counted: PlaceLosses | None = None, joint: bool = False):
        self.places, self.counted, self.joint = places, counted, joint
        update_wrapper(self, places)

    def __call__(self, prediction: DraftPrediction) -> Tensor:
        values = self.places(prediction)
        return mean(values) if self.counted is None else values.sum() / self.counted(prediction).sum().clamp(min=1)


def mean(values: Tensor) -> Tensor:
    """The mean of [n], and 0 with gradients for n = 0."""
    return values.sum() / max(len(values), 1)


@Loss
def smooth_l1(prediction: DraftPrediction) -> Tensor:
    """Distance of features, mean over the width ("EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty").

    Raises ValueError for a drafter that predicts no features.
    """
    if prediction.feature is None:
        raise ValueError("smooth_l1: expected a drafter that predicts features, got one that does not; leave it out")
    return F.smooth_l1_loss(prediction.feature.float(), prediction.truth.float(), reduction="none").mean(-1)


@Loss
def cross_entropy(prediction: DraftPrediction) -> Tensor:
    """-sum_v p log q, soft labels ("EAGLE", "EAGLE-3"); its gradient is that of `forward_kl`, its value is not 0 at p = q."""
    return -(prediction.teacher.softmax(-1) * prediction.student.log_softmax(-1)).sum(-1)


@partial(Loss, counted=lambda prediction: prediction.token >= 0)
def hard_cross_entropy(prediction: DraftPrediction) -> Tensor:
    """-log q(x) of the token x that follows in the text ("Medusa"). Places of tokens below 0 do not count."""
    token = prediction.token.where(prediction.token >= 0, -100)
    return F.cross_entropy(prediction.student, token, reduction="none", ignore_index=-100)


@Loss
def forward_kl(prediction: DraftPrediction) -> Tensor:
    """KL(p || q) = sum_v p (log p - log q), the distillation of "DistillSpec: Improving Speculative Decoding via Knowledge
    Distillation"; 0 at p = q."""
    return _kl(prediction.teacher.log_softmax(-1), prediction.student.log_softmax(-1))


@Loss
def reverse_kl(prediction: DraftPrediction) -> Tensor:
    """KL(q || p) = sum_v q (log q - log p) ("DistillSpec"): seeks modes of p; 0 at p = q."""
    return _kl(prediction.student.log_softmax(-1), prediction.teacher.log_softmax(-1))


def jsd(beta: float = 0.5) -> Loss:
    """beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q: the generalized Jensen-Shannon divergence of
    "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes", a choice of "DistillSpec".

    Raises ValueError unless 0 < beta < 1.
    """
    if not 0 < beta < 1:
        raise ValueError(f"jsd: expected beta between 0 and 1, got {beta}; use forward_kl or reverse_kl for the ends")

    def places(prediction: DraftPrediction) -> Tensor:
        teacher, student = prediction.teacher.log_softmax(-1), prediction.student.log_softmax(-1)
        middle = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
        return beta * _kl(teacher, middle) + (1 - beta) * _kl(student, middle)

    return Loss(places)


@Loss
def l1(prediction: DraftPrediction) -> Tensor:
    """sum_v |q - p| (ViSpec's second stage), twice the total variation."""
    return (prediction.student.softmax(-1) - prediction.teacher.softmax(-1)).abs().sum(-1)


@Loss
def total_variation(prediction: DraftPrediction) -> Tensor:
    """sum_v |q - p| / 2 ("DistillSpec"): the probability that a token drawn from q is rejected."""
    return 0.5 * l1.places(prediction)


@partial(Loss, joint=True)
def tvd_plus_plus(prediction: DraftPrediction) -> Tensor:
    """TVD++ of "Direct Alignment of Draft Model for Speculative Decoding with Chat-Fine-Tuned LLMs".

    The gradient of the total variation is a policy gradient: -E_{x ~ q}[r(x) grad log q(x)] with reward r(x) = 1 where
    p(x) > q(x) and 0 elsewhere. TVD++ puts the advantage (r - mean) / std in place of r. The expectation over x is taken in
    full here, and mean and std are those of r under q over all places of the prediction, which is how we read "normalized over
    the batch". The value is -sum_v [q A] log q with [.] held constant: only its gradient means something.
    """
    log_q = prediction.student.log_softmax(-1)
    with torch.no_grad():
        q = log_q.exp()
        reward = (prediction.teacher.softmax(-1) > q).float()
        average = mean((q * reward).sum(-1))  # of a variable that is 0 or 1, so its variance is m - m^2
        weight = q * (reward - average) / (average - average**2).clamp(min=1e-8).sqrt()
    return -(weight * log_q).sum(-1)


def list_mle(top: int = 10) -> Loss:
    """-sum_i [z_i - logsumexp_{j >= i} z_j] over the target's `top` tokens in its order, z the drafter's log-weights of them:
    the Plackett-Luce likelihood of that order ("Listwise Approach to Learning to Rank: Theory and Algorithm", in ViSpec's
    public code with 10 tokens).

    Raises ValueError for fewer than 2 tokens.
    """
    if top < 2:
        raise ValueError(f"list_mle: expected at least 2 tokens to order, got {top}")

    def places(prediction: DraftPrediction) -> Tensor:
        order = prediction.teacher.topk(min(top, prediction.teacher.shape[-1]), -1).indices
        z = prediction.student.gather(-1, order)
        # flipped, a cumulative logsumexp runs over what comes later in the order
        return (z.flip(-1).logcumsumexp(-1).flip(-1) - z).sum(-1)

    return Loss(places)


LOSSES: dict[str, Loss] = {
    "smooth_l1": smooth_l1,
    "cross_entropy": cross_entropy,
    "hard_cross_entropy": hard_cross_entropy,
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jsd": jsd(),
    "l1": l1,
    "total_variation": total_variation,
    "tvd_plus_plus": tvd_plus_plus,
    "list_mle": list_mle(),
}


def terms_of(text: str) -> tuple[tuple[float, Loss], ...]:
    """Weighted terms written as "l1:10,list_mle:0.1"; a name without a weight counts once.

    Raises ValueError for an unknown name and a weight that is no positive number.
    """
    terms = []
    for part in text.split(","):
        name, _, weight = (piece.strip() for piece in part.partition(":"))
        if name not in LOSSES:
            raise ValueError(
                f"loss: expected names of {', '.join(LOSSES)}, got {name!r}; write for example l1:10,list_mle:0.1"
            )
        try:
            value = float(weight or 1)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise ValueError(
                f"loss: expected a positive weight behind {name}, got {weight!r}; write for example {name}:0.1"
            )
        terms.append((value, LOSSES[name]))
    return tuple(terms)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """KL of log-probabilities [n, V]."""
    return (p.exp() * (p - q)).sum(-1)
