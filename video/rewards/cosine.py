"""Rewards of CLIP's kind: the cosine between what was asked for and what is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mmspec.video.rewards.views import Views, to_bytes


class ImageTextEncoder(Protocol):
    """Two towers of one space. `mmspec.zoo.load("clip")` is one."""

    def encode_images(self, images: Tensor) -> Tensor:
        """uint8 [N, 3, H, W] -> float32 [N, D], each of norm one."""
        ...

    def encode_texts(self, prompts: Sequence[str]) -> Tensor:
        """float32 [N, D], each of norm one."""
        ...


@dataclass(frozen=True)
class CosineReward:
    """scale * cosine, as a `Reward`.

    views: the squares of a frame that the encoder is shown; None for whole frames, which it brings to its size itself.
    """

    encoder: ImageTextEncoder
    scale: float = 1.0
    views: Views | None = None
    name: str = "cosine"

    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """float32 [F], as `Reward`."""
        seen = to_bytes(frames)
        squares = seen if self.views is None else self.views(seen).flatten(0, 1)
        images = self.encoder.encode_images(squares)
        scores = self.scale * (images @ self.encoder.encode_texts([prompt])[0])
        return scores if self.views is None else self.views.joined(scores, len(frames))
