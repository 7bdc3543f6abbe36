"""The terms of a drafter's objective: the loss of each of n places of a prediction, and its mean. q is the drafter's
distribution over the next token and p the target's, both the softmax of log-weights."""

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
    """A term of an objective. A call returns its mean over the included places, a scalar, or 0 without such a place.
    `places` returns the loss of each place of a prediction, float32 [n], 0 for excluded places, and `counted` the
    included places, bool [n]; None for all. With `joint`, the loss of a place depends on the others, so that chunks are
    not allowed."""

    def __init__(self, places: PlaceLosses, counted: PlaceLosses | None = None, joint: bool = False):
        self.places, self.counted, self.joint = places, counted, joint
        update_wrapper(self, places)

    def __call__(self, prediction: DraftPrediction) -> Tensor:
        values = self.places(prediction)
        return mean(values) if self.counted is None else values.sum() / self.counted(prediction).sum().clamp(min=1)


def mean(values: Tensor) -> Tensor:
    """Return the mean of [n], and 0 with gradients for n = 0."""
    return values.sum() / max(len(values), 1)


@Loss
def smooth_l1(prediction: DraftPrediction) -> Tensor:
    """SmoothL1 distance of features, mean over the width ("EAGLE: Speculative Sampling Requires Rethinking Feature
    Uncertainty")."""
    if prediction.feature is None:
        raise ValueError("smooth_l1: expected a drafter that predicts features, got a drafter of tokens; leave it out")
    return F.smooth_l1_loss(prediction.feature.float(), prediction.truth.float(), reduction="none").mean(-1)


@Loss
def cross_entropy(prediction: DraftPrediction) -> Tensor:
    """-sum_v p log q with soft labels ("EAGLE", "EAGLE-3"); it has the gradient of `forward_kl`, but is not 0 at p = q."""
    return -(prediction.teacher.softmax(-1) * prediction.student.log_softmax(-1)).sum(-1)


@partial(Loss, counted=lambda prediction: prediction.token >= 0)
def hard_cross_entropy(prediction: DraftPrediction) -> Tensor:
    """-log q(x) of the next token x of the text ("Medusa"). Places with tokens below 0 are excluded."""
    token = prediction.token.where(prediction.token >= 0, -100)
    return F.cross_entropy(prediction.student, token, reduction="none", ignore_index=-100)


@Loss
def forward_kl(prediction: DraftPrediction) -> Tensor:
    """KL(p || q) = sum_v p (log p - log q), the distillation of "DistillSpec: Improving Speculative Decoding via Knowledge
    Distillation"; 0 at p = q."""
    return _kl(prediction.teacher.log_softmax(-1), prediction.student.log_softmax(-1))


@Loss
def reverse_kl(prediction: DraftPrediction) -> Tensor:
    """KL(q || p) = sum_v q (log q - log p) ("DistillSpec"), which prefers modes of p; 0 at p = q."""
    return _kl(prediction.student.log_softmax(-1), prediction.teacher.log_softmax(-1))


def jsd(beta: float = 0.5) -> Loss:
    """Return beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q and beta between 0 and 1: the
    generalized Jensen-Shannon divergence of "On-Policy Distillation of Language Models: Learning from Self-Generated
    Mistakes", an option of "DistillSpec"."""
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
    """TVD++ of "Direct Alignment of Draft Model for Speculative Decoding with Chat-Fine-Tuned LLMs". The gradient of
    the total variation is a policy gradient, -E_{x ~ q}[r(x) grad log q(x)], with reward r(x) = 1 if p(x) > q(x) and 0
    otherwise. TVD++ replaces r by the advantage A = (r - mean) / std. Here the expectation over x is exact, and mean
    and std are those of r under q over all places ("normalized over the batch"). The value is -sum_v [q A] log q with
    [.] constant; only its gradient is meaningful."""
    log_q = prediction.student.log_softmax(-1)
    with torch.no_grad():
        q = log_q.exp()
        reward = (prediction.teacher.softmax(-1) > q).float()
        average = mean((q * reward).sum(-1))  # the mean m of a 0-1 variable, whose variance is m - m^2
        weight = q * (reward - average) / (average - average**2).clamp(min=1e-8).sqrt()
    return -(weight * log_q).sum(-1)


def list_mle(top: int = 10) -> Loss:
    """Return -sum_i [z_i - logsumexp_{j >= i} z_j] over the target's `top` tokens in its order, at least 2; z are the
    drafter's log-weights. This is the Plackett-Luce likelihood of the order ("Listwise Approach to Learning to Rank:
    Theory and Algorithm"), used in ViSpec's public code with 10 tokens."""
    if top < 2:
        raise ValueError(f"list_mle: expected at least 2 tokens to order, got {top}")

    def places(prediction: DraftPrediction) -> Tensor:
        order = prediction.teacher.topk(min(top, prediction.teacher.shape[-1]), -1).indices
        z = prediction.student.gather(-1, order)
        # flipped, so that the cumulative logsumexp runs over later tokens
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
    """Parse weighted terms such as "l1:10,list_mle:0.1"; a name without a weight has weight 1."""
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
                f"loss: expected a positive weight after {name}, got {weight!r}; write for example {name}:0.1"
            )
        terms.append((value, LOSSES[name]))
    return tuple(terms)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return the KL divergence of log-probabilities [n, V]."""
    return (p.exp() * (p - q)).sum(-1)
