"""Pixels between tensors and PIL images."""

from __future__ import annotations

from PIL import Image
from torch import Tensor


def to_pil(pixels: Tensor) -> list[Image.Image]:
    """RGB images of pixels float [B, 3, H, W] in 0..1, rounded to the nearest of 256 levels."""
    levels = pixels.float().clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(level) for level in levels]
