"""A small random prediction."""

from __future__ import annotations

import torch

from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction


def prediction(n: int = 5, vocab: int = 13, width: int = 4, seed: int = 0, depth: int = 0) -> DraftPrediction:
    """Log-weights that are not normalized; everything of the drafter's carries gradients."""
    rng = torch.Generator().manual_seed(seed)
    student = (torch.randn(n, vocab, generator=rng) * 2).requires_grad_()
    feature = (torch.randn(n, width, generator=rng) * 2).requires_grad_()
    return DraftPrediction(
        student,
        torch.randn(n, vocab, generator=rng) * 2,
        torch.randint(vocab, (n,), generator=rng),
        depth,
        feature,
        torch.randn(n, width, generator=rng),
    )


def perfect(n: int = 5) -> DraftPrediction:
    """A drafter that says what the target says, up to a constant."""
    one = prediction(n)
    same = (one.teacher + 3.0).requires_grad_()
    return DraftPrediction(same, one.teacher, one.token, 0, one.truth.clone().requires_grad_(), one.truth)
