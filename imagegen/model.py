"""What the engine asks of an autoregressive image model; each model is one adapter that answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.pool import SlotPool
from mmspec.imagegen.geometry import Geometry


@dataclass(slots=True)
class ImageModelOutput:
    """What one pass returns for C branches (1, or 2 with the unconditional one) of B rows, laid out [C, B].

    logits: float32 [C * B, N, V], raw log-weights over VALUES for what follows each position.
    hidden: float [C * B, N, H], the states that entered the head.
    prompt_hidden: float [C * B, P, H], those of the whole prompt; of a prefill, where the model keeps them.
    """

    logits: Tensor
    hidden: Tensor
    prompt_hidden: Tensor | None = None


class ImageModel(Protocol):
    """An adapter. Values are codes 0..K-1 and, from K on, the forced specials of its geometry.

    name: what tables print.   geometry: see `Geometry`.   size: V, values.   codes: K.
    layers: attention layers, all of one shape.   cache: what keeps their keys and values, made once a request: `SlotPool`, or
    `SlotCache` where they are transformers' own.   device, dtype: of the weights.
    no_pixels: one sentence why codes cannot be decoded, None where they can.
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
        """The condition `prefill` takes, made from what the user gave (labels, texts, token ids...)."""

    def rows(self, condition: object) -> int:
        """B, the images a condition asks for."""

    def prefill(self, condition: object, cache: SlotPool, paired: bool) -> tuple[ImageModelOutput, int]:
        """Runs the prompt of both branches if `paired` (cache rows: all conditional, then all unconditional).

        Returns what follows the prompt's last position (N = 1) and P, the slots the prompt took in every row of the cache
        (the caller counts them). Slots of padding are marked in `cache.hidden`, bool [C * B, P].
        """

    def forward(self, value: Tensor, index: Tensor, bias: Tensor | None, cache: SlotPool) -> ImageModelOutput:
        """One pass over drafted values. value, index: int64 [C * B, N], the values fed and which of the image's values
        each is; bias: additive mask as `SlotPool.bias` returns it, None for one unpadded value a row.
        """

    def decode(self, codes: Tensor) -> Tensor:
        """Pixels float32 [B * frames, 3, H, W] in 0..1 of codes int64 [B, frames * rows * cols], frame after frame."""

    def codebook(self) -> Tensor:
        """float32 [K, d], the geometry in which codes are neighbours."""


class FeatureModel(ImageModel, Protocol):
    """An adapter whose states a drafter can read: its `prefill` returns `prompt_hidden`.

    width: H of the states.   Neither method may stop gradients: drafters are trained through them.
    """

    width: int

    def embed(self, value: Tensor) -> Tensor:
        """[..., H], what the model reads for values int64 [...], positions left out."""

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [..., V], the head's raw log-weights over VALUES of states [..., H]."""
