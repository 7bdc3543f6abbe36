"""DiSA: many denoising steps for the first tokens of an image, few for the last tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from mmspec.imagegen.continuous.schedules.generation_order import GenerationStep
from mmspec.io.validation import Range, Share, check_fields
from mmspec.methods import MethodParts, method

Shape = Literal["linear", "cosine", "constant", "two-stage"]
SHORTER = 10  # the default ratio of first to last denoising steps; in the paper 50 steps become 5


@dataclass(frozen=True, slots=True)
class Annealing:
    """Denoising steps that fall from `first` to `last` over the autoregressive steps. Relaxed.

    "DiSA: Diffusion Step Annealing in Autoregressive Image Generation".

    Args:
        first: The denoising steps of the first step.
        last: The denoising steps of the last step.
        shape: How the number falls.
            "linear": last + floor((N - 1 - s) / (N - 1) (first - last)).
            "cosine": the quarter wave from first to last instead; the paper's own cosine is not known to us.
            "constant": `first` throughout.
            "two-stage": `first` for the fraction `switch` of the steps, then `last`.
        switch: The fraction at which "two-stage" switches.

    Raises:
        ValueError: A setting is out of range.
    """

    first: int = 50
    last: Annotated[int, Range(2)] = 5
    shape: Shape = "linear"
    switch: Share = 0.5

    def __post_init__(self) -> None:
        check_fields(self)
        if self.last > self.first:
            raise ValueError(
                f"last: expected 2 to {self.first} denoising steps, got {self.last}; use at most first={self.first}"
            )

    def at(self, step: int, total: int) -> int:
        """Return the denoising steps of autoregressive step `step` of `total`."""
        left = 1 - step / (total - 1) if total > 1 else 1.0
        if self.shape == "constant":
            return self.first
        if self.shape == "two-stage":
            return self.first if step < self.switch * total else self.last
        share = left if self.shape == "linear" else math.sin(math.pi / 2 * left)
        return self.last + math.floor(share * (self.first - self.last) + 1e-9)

    def by_rank(self, steps: Sequence[GenerationStep], total: int, windows: Sequence[int] | None = None) -> Tensor:
        """Return int64 [total], the denoising steps by rank of the order. A window gets those of its first step, given
        in `windows`, so that it is a single run of the head."""
        counts = torch.empty(total, dtype=torch.long)
        for step, start in zip(steps, windows or range(len(steps)), strict=True):
            counts[step.first : step.last] = self.at(start, len(steps))
        return counts


@method(
    "anneal",
    domain="continuous",
    kind="schedule",
    title="annealed heads (DiSA)",
    exact=False,
    models=("masked",),
    order=0,
    about="fewer denoising steps for the later tokens of an image",
    paper="DiSA: Diffusion Step Annealing in Autoregressive Image Generation",
)
def anneal(
    parts: MethodParts, first: int | None = None, last: int | None = None, shape: Shape = "linear", switch: float = 0.5
) -> Annealing:
    """`Annealing` that starts with the steps of a model's head.

    Args:
        parts: The model and its head, "head".
        first: The denoising steps of the first tokens; those of the head by default.
        last: The denoising steps of the last tokens; a tenth of the first by default.
        shape: How the number of steps falls.
        switch: The share of the image at which two-stage switches.
    """
    most = parts.part("head").steps if first is None else first
    return Annealing(most, max(2, most // SHORTER) if last is None else last, shape, switch)
