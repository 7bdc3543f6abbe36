"""From the codes of a small picture to candidate codes of a large one, without training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from mmspec.core.arguments import check_fields


class Upsampler(Protocol):
    """scale: how many codes of the large picture, per side, one code of the small one becomes. `down` is needed only where
    rows are drawn a few at a time.
    """

    scale: int

    def up(self, codes: Tensor) -> Tensor:
        """int64 [B, r, c] -> candidates int64 [B, scale r, scale c]; any number of rows from the top of the picture."""

    def down(self, codes: Tensor) -> Tensor:
        """int64 [B, scale r, scale c] -> codes int64 [B, r, c] of the small picture."""


@dataclass(frozen=True, slots=True)
class PixelUpsampler:
    """Decodes to pixels, resizes them bicubically, encodes again. Training-free, the paper's second version.

    decode: int64 [B, r, c] -> pixels float [B, 3, H, W].   encode: pixels -> int64 [B, r, c].   For a `VQModel`:
    `PixelUpsampler.of(vq)`.   Raises ValueError for a scale below 2.
    """

    decode: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor], Tensor]
    scale: int = 2

    def __post_init__(self) -> None:
        check_fields(self)
        if self.scale < 2:
            raise ValueError(f"scale: expected 2 or more, got {self.scale}")

    @staticmethod
    def of(vq: object, scale: int = 2) -> PixelUpsampler:
        """Through one tokenizer that serves both sizes."""

        def encode(pixels: Tensor) -> Tensor:
            rows, codes = vq.encode(pixels.to(vq.codebook().dtype))
            return codes.view(len(codes), *rows.shape[2:])

        return PixelUpsampler(vq.decode_code, encode, scale)

    def up(self, codes: Tensor) -> Tensor:
        pixels = self.decode(codes).float()
        return self.encode(
            interpolate(pixels, scale_factor=self.scale, mode="bicubic", align_corners=False).clamp(-1, 1)
        )

    def down(self, codes: Tensor) -> Tensor:
        return self.encode(avg_pool2d(self.decode(codes).float(), self.scale).clamp(-1, 1))
