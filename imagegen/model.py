"""The interface between the engine and an autoregressive image model; each model has an adapter that implements it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.pool import SlotPool
from mmspec.imagegen.geometry import Geometry


@dataclass(slots=True)
class ImageModelOutput:
    """The result of a forward pass for C branches (2 with the unconditional branch) of B rows, laid out as [C, B].

    Attributes:
        logits: float32 [C * B, N, V], raw log-weights over VALUES for the token behind each position.
        hidden: float [C * B, N, H], the states that entered the head.
        prompt_hidden: float [C * B, P, H], the states of the whole prompt; set by a prefill where the model returns
            them.
    """

    logits: Tensor
    hidden: Tensor
    prompt_hidden: Tensor | None = None


class ImageModel(Protocol):
    """An adapter. Values are codes 0..K-1 and, from K on, the forced special tokens of its geometry.

    Attributes:
        name: The name in tables.
        geometry: See `Geometry`.
        size: V, the number of values.
        codes: K, the number of codes.
        layers: The number of attention layers, all of the same shape.
        cache: The class of the KV cache of a request: `SlotPool`, or `SlotCache` for layers of transformers.
        device: The device of the weights.
        dtype: The dtype of the weights.
        no_pixels: A sentence that says why codes cannot be decoded; None where they can.
    """

    name: str
    geometry: Geometry
    size: int
    codes: int
    layers: int
    cache: type[SlotPool]
    device: torch.device
    dtype: torch.dtype
    no_pixels: str | None

    def prepare(self, prompts: object) -> object:
        """Convert the user's prompts (labels, texts, token ids...) to the condition that `prefill` expects."""

    def rows(self, condition: object) -> int:
        """Return B, the number of images of a condition."""

    def prefill(self, condition: object, cache: SlotPool, paired: bool) -> tuple[ImageModelOutput, int]:
        """Run the prompt, with both branches if `paired` (cache rows: all conditional, then all unconditional).

        Slots of padding are marked in `cache.hidden`, bool [C * B, P].

        Returns:
            The output at the prompt's last position (N = 1), and P, the cache slots per row of the prompt. The caller
            advances the cache by them.
        """

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotPool) -> ImageModelOutput:
        """Run a forward pass over drafted values.

        Args:
            value: int64 [C * B, N], the values to feed.
            index: int64 [C * B, N], their indices among the image's values.
            bias: The additive mask of `SlotPool.bias`; None for a single unpadded value per row.
            cache: The KV cache.
        """

    def decode(self, codes: Tensor) -> Tensor:
        """Return pixels float32 [B * frames, 3, H, W] in 0..1 of codes int64 [B, frames * rows * cols]."""

    def codebook(self) -> Tensor:
        """Return float32 [K, d], the vectors whose distances make codes neighbours."""


class FeatureModel(ImageModel, Protocol):
    """An adapter whose hidden states a drafter can read: its `prefill` returns `prompt_hidden`.

    Neither method may stop gradients, because drafters are trained through them.

    Attributes:
        width: H, the width of the states.
    """

    width: int

    def embed(self, value: Tensor) -> Tensor:
        """Return the input embeddings [..., H] of values int64 [...], without positions."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the head's raw log-weights over VALUES, float32 [..., V], of states [..., H]."""
