"""Pictures as the image models take them: float pixels in -1..1, and back to bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ..world.pictures import PICTURE_SIDE


def to_pixels(arrays: np.ndarray) -> Tensor:
    """uint8 [B, H, W, 3] -> float32 [B, 3, H, W] in -1..1."""
    return torch.from_numpy(arrays).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0).contiguous()


def to_bytes(pixels: Tensor) -> np.ndarray:
    """float [B, 3, H, W] in -1..1 -> uint8 [B, H, W, 3]."""
    scaled = (pixels.detach().float().clamp(-1, 1) + 1) * 127.5
    return scaled.round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


def image_pixels(images: Sequence[Image.Image] | Tensor) -> Tensor:
    """PIL images, or a uint8 tensor [B, 3, H, W] or [B, H, W, 3], as float32 [B, 3, 64, 64] in -1..1.

    Other sizes are brought to 64x64 by area.   Raises ValueError for anything else.
    """
    if isinstance(images, Tensor):
        if images.dtype != torch.uint8 or images.ndim != 4 or 3 not in (images.shape[1], images.shape[-1]):
            raise ValueError(
                f"images: expected a uint8 tensor [B, 3, H, W] or [B, H, W, 3], got {images.dtype} "
                f"{tuple(images.shape)}; convert it"
            )
        stacked = images if images.shape[1] == 3 else images.permute(0, 3, 1, 2)
    else:
        side = (PICTURE_SIDE, PICTURE_SIDE)
        drawn = [image.convert("RGB") for image in images]
        drawn = [one if one.size == side else one.resize(side, Image.Resampling.BOX) for one in drawn]
        stacked = torch.from_numpy(np.stack([np.asarray(one) for one in drawn])).permute(0, 3, 1, 2)
    pixels = stacked.float() / 127.5 - 1.0
    if pixels.shape[-2:] != (PICTURE_SIDE, PICTURE_SIDE):
        pixels = F.interpolate(pixels, size=(PICTURE_SIDE, PICTURE_SIDE), mode="area")
    return pixels.contiguous()
