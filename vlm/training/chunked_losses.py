"""Losses over a large vocabulary in chunks of places, so that a block [places, vocabulary] is never held whole."""

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
    """The terms of a loss at n places.

    Args:
        values: float32 [n, K], the value of each term, with gradients; 0 where a term does not count a place.
        counted: bool [n, K], whether a term counts a place.
        hits: bool [n], whether the likeliest token of drafter and target is the same.
        figures: float32 [n, E], further numbers of each place, without gradients; [n, 0] where there are none.
    """

    values: Tensor
    counted: Tensor
    hits: Tensor
    figures: Tensor

    def mean(self, factors: Sequence[float]) -> Tensor:
        """The weighted sum of the terms' means over the places that they count, a scalar."""
        means = self.values.sum(0) / self.counted.sum(0).clamp(min=1)
        return (means * means.new_tensor(factors)).sum()

    def weighted(self, factors: Sequence[float]) -> Tensor:
        """float32 [n], the weighted sum of the terms at each place."""
        return (self.values * self.values.new_tensor(factors)).sum(-1)


def term_losses(
    predict: Predict,
    count: int,
    vocabulary: int,
    terms: Sequence[Loss],
    device: torch.device,
    figures: PlaceFigures | None = None,
) -> TermLosses:
    """The terms at places 0 to count - 1, equal in value and gradient to those of one prediction of all places.

    Args:
        predict: The prediction at places int64 [n]. It computes the scores from states, and runs again in the backward pass.
        count: The number of places.
        vocabulary: The larger number of log-weights that `predict` makes a place, of drafter and target.
        terms: Losses of places, none for the hits alone. Where a term is `joint`, all places are one chunk.
        device: Of the places.
        figures: float32 [n, E] of a prediction and its places, computed without gradients.
    """

    def compute(places: Tensor) -> tuple[Tensor, ...]:
        made = predict(places)
        everywhere = torch.ones(len(places), dtype=torch.bool, device=places.device)
        values, counted = made.student.new_zeros(len(places), 0), everywhere.new_zeros(len(places), 0)
        if terms:
            values = torch.stack([term.places(made).float() for term in terms], -1)
            counted = torch.stack([everywhere if term.counted is None else term.counted(made) for term in terms], -1)
        with torch.no_grad():
            hits = made.student.argmax(-1) == made.teacher.argmax(-1)
            more = values.new_zeros(len(places), 0) if figures is None else figures(made, places).float()
        return values, counted, hits, more

    if any(term.joint for term in terms):
        vocabulary = 1  # statistics of all places
    return TermLosses(*map_chunks(compute, count, vocabulary, device))


def map_chunks(
    compute: Callable[[Tensor], tuple[Tensor, ...]], count: int, scores: int, device: torch.device
) -> tuple[Tensor, ...]:
    """The results of `compute` for places 0 to count - 1, each [count, ...], in chunks.

    With gradients, a chunk keeps its results alone and is computed again in the backward pass.

    Args:
        compute: Takes places int64 [n], returns tensors of n rows.
        count: The number of places, at least 0.
        scores: Numbers that `compute` holds a place; a chunk has at most `CHUNK_SCORES` of them.
        device: Of the places.
    """
    chunks = torch.arange(count, device=device).split(max(CHUNK_SCORES // scores, 1))
    if len(chunks) == 1:
        return compute(chunks[0])
    if torch.is_grad_enabled():
        made = [checkpoint(compute, places, use_reentrant=False, preserve_rng_state=False) for places in chunks]
    else:
        made = [compute(places) for places in chunks]
    return tuple(torch.cat(rows) for rows in zip(*made, strict=True))
