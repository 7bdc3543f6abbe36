"""What the masked engine asks of a model of continuous tokens."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmspec.imagegen.continuous.head import Head
from mmspec.imagegen.continuous.token_cache import ALL, Slots


class MaskedModel(Protocol):
    """name: what tables print.   total: L, tokens of an image.   dim: d of a token.   device, dtype: of the weights.
    no_pixels: one sentence why tokens cannot be decoded, None where they can.
    """

    name: str
    total: int
    dim: int
    device: torch.device
    dtype: torch.dtype
    no_pixels: str | None

    def prepare(self, prompts: object) -> Tensor:
        """A row for each image, the condition made from what the user gave: int64 [B], or features float [B, P, C]."""

    def condition(
        self, tokens: Tensor, mask: Tensor, labels: Tensor, paired: bool, wanted: Tensor | None = None, slots: Slots = ALL
    ) -> Tensor:  # fmt: skip
        """z [C, B, L, width], what the head is conditioned on, of C branches: 1, or 2 with the unconditional one.

        tokens: float [B, L, d].   mask: bool [B, L], True where masked; no one sees what stands there.
        wanted: int64 [B, N], the positions whose z will be read, L for none; a model may leave others out. None for all.
        slots: which tokens the decoder computes, rows [C * B], those of the conditional branch first.
        """

    def head(self, num_sampling_steps: str | int | None = None) -> Head:
        """The head with as many denoising steps, None for the model's own."""

    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels float32 [B, 3, H, W] in 0..1 of an image's tokens float [B, L, d]."""
