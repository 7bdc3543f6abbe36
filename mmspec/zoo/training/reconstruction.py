"""What the zoo's autoencoders of pictures and of films are trained on."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Weights(Protocol):
    """A recipe's weights of squares and divergence, and that of edges, which grows with the step."""

    squares: float
    divergence: float

    def edges_at(self, step: int) -> float: ...


def reconstruction_loss(
    made: Tensor, pixels: Tensor, mean: Tensor, log_variance: Tensor, weights: Weights, step: int,
    counts: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
    """L1 and squares of pixels in -1..1, [..., H, W], L1 of their differences in space, and the posterior's divergence.

    counts: how much a pixel counts, broadcast over pixels; None for one like another.
    """
    gap = made.float() - pixels
    squares = gap.square().mean()
    counts = torch.ones_like(gap) if counts is None else (counts / counts.mean()).expand_as(gap)
    edges = sum((gap.diff(dim=side).abs() * counts.narrow(side, 1, gap.shape[side] - 1)).mean() for side in (-2, -1))
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    gaps = ((gap.abs() + weights.squares * gap.square()) * counts).mean()
    loss = gaps + weights.edges_at(step) * edges + weights.divergence * divergence
    # pixels span -1..1, so a squared error of 4 is full scale
    psnr = -10 * (squares.detach() / 4).log10()
    return loss, {"psnr": float(psnr), "edges": float(edges.detach()), "divergence": float(divergence.detach())}
