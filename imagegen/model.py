"""The interface between the engine and an autoregressive image model; each model has an adapter that implements it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.round.pool import SlotPool
from mmspec.imagegen.geometry import Geometry


@dataclass(slots=True)
class ImageModelOutput:
    """The result of a forward pass for C branches (2 with the unconditional branch) of B rows, laid out as [C, B]."""

    logits: Tensor  # float32 [C * B, N, V], raw log-weights over VALUES for the token behind each position
    hidden: Tensor  # float [C * B, N, H], the states that entered the head
    prompt_hidden: Tensor | None = None  # float [C * B, P, H], of the whole prompt; some prefills set it


class ImageModel(Protocol):
    """An adapter. Values are codes 0..K-1 and, from K on, the forced special tokens of its geometry."""

    name: str
    geometry: Geometry
    size: int  # V, the number of values
    codes: int  # K
    layers: int  # attention layers, all of the same shape
    cache: type[SlotPool]  # of a request: `SlotPool`, or `SlotCache` for layers of transformers
    device: torch.device
    dtype: torch.dtype
    no_pixels: str | None  # why codes cannot be decoded; None where they can

    def prepare(self, prompts: object) -> object:
        """Convert the user's prompts (labels, texts, token ids...) to the condition that `prefill` expects."""

    def rows(self, condition: object) -> int:
        """Return B, the number of images of a condition."""

    def prefill(self, condition: object, cache: SlotPool, paired: bool) -> tuple[ImageModelOutput, int]:
        """Run the prompt, with both branches if `paired` (cache rows: all conditional, then all unconditional). Padding
        is marked in `cache.hidden`, bool [C * B, P]. Return the output at the prompt's last position (N = 1), and P,
        the cache slots per row, by which the caller advances the cache."""

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotPool) -> ImageModelOutput:
        """Run values and their indices int64 [C * B, N]; `bias` None is for a single unpadded value per row."""

    def decode(self, codes: Tensor) -> Tensor:
        """Return pixels float32 [B * frames, 3, H, W] in 0..1 of codes int64 [B, frames * rows * cols]."""

    def codebook(self) -> Tensor:
        """Return float32 [K, d], the vectors whose distances make codes neighbours."""


class FeatureModel(ImageModel, Protocol):
    """An adapter whose hidden states, of width H, a drafter can read: its `prefill` returns `prompt_hidden`. Neither
    method may stop gradients, because drafters are trained through them."""

    width: int

    def embed(self, value: Tensor) -> Tensor:
        """Return the input embeddings [..., H] of values int64 [...], without positions."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the head's raw log-weights over VALUES, float32 [..., V], of states [..., H]."""
