"""Losses over a large vocabulary in chunks of places, so that a matrix [places, vocabulary] is never stored whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction
from mmspec.vlm.training.losses import Loss

CHUNK_SCORES = 2**23  # log-weights of a chunk: 32 MB in float32

Predict = Callable[[Tensor], DraftPrediction]
PlaceFigures = Callable[[DraftPrediction, Tensor], Tensor]


@dataclass(slots=True)
class TermLosses:
    """The terms of a loss at n places."""

    values: Tensor  # float32 [n, K], of each term, with gradients; 0 if the term excludes the place
    counted: Tensor  # bool [n, K], whether a term includes a place
    hits: Tensor  # bool [n], whether drafter and target have the same most likely token
    figures: Tensor  # float32 [n, E], further numbers of each place, without gradients; E may be 0

    def mean(self, factors: Sequence[float]) -> Tensor:
        """Return the weighted sum of the terms' means over their places, a scalar."""
        means = self.values.sum(0) / self.counted.sum(0).clamp(min=1)
        return (means * means.new_tensor(factors)).sum()

    def weighted(self, factors: Sequence[float]) -> Tensor:
        """Return the weighted sum of the terms at each place, float32 [n]."""
        return (self.values * self.values.new_tensor(factors)).sum(-1)


def term_losses(
    predict: Predict,
    count: int,
    vocabulary: int,
    terms: Sequence[Loss],
    device: torch.device,
    figures: PlaceFigures | None = None,
) -> TermLosses:
    """Return the terms at places 0 to count - 1, with the values and gradients of a single prediction of all places.
    `predict` computes the scores at places int64 [n] from states, and again in the backward pass. `vocabulary` is the
    larger number of log-weights of drafter and target. No terms give the hits alone; a `joint` term makes all places a
    single chunk. `figures` returns float32 [n, E] of a prediction and its places."""

    def compute(places: Tensor) -> tuple[Tensor, ...]:
        prediction = predict(places)
        everywhere = torch.ones(len(places), dtype=torch.bool, device=places.device)
        values, counted = prediction.student.new_zeros(len(places), 0), everywhere.new_zeros(len(places), 0)
        if terms:
            values = torch.stack([term.places(prediction).float() for term in terms], -1)
            masks = [everywhere if term.counted is None else term.counted(prediction) for term in terms]
            counted = torch.stack(masks, -1)
        with torch.no_grad():
            hits = prediction.student.argmax(-1) == prediction.teacher.argmax(-1)
            more = values.new_zeros(len(places), 0) if figures is None else figures(prediction, places).float()
        return values, counted, hits, more

    if any(term.joint for term in terms):
        vocabulary = 1  # joint terms need statistics of all places
    return TermLosses(*map_chunks(compute, count, vocabulary, device))


def map_chunks(
    compute: Callable[[Tensor], tuple[Tensor, ...]], count: int, scores: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Return the results of `compute`, of places int64 [n], for places 0 to count - 1, in chunks of `CHUNK_SCORES`
    numbers; `scores` is the numbers that it needs for a place. With gradients, only the results of a chunk are stored,
    and the chunk is computed again in the backward pass."""
    chunks = torch.arange(count, device=device).split(max(CHUNK_SCORES // scores, 1))
    if len(chunks) == 1:
        return compute(chunks[0])
    if torch.is_grad_enabled():
        results = [checkpoint(compute, places, use_reentrant=False, preserve_rng_state=False) for places in chunks]
    else:
        results = [compute(places) for places in chunks]
    return tuple(torch.cat(rows) for rows in zip(*results, strict=True))
