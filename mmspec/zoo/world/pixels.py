"""Scenes as tensors: pixels in -1..1 and back to bytes, rendered batches, and their augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from PIL import Image
from torch import Tensor

from mmspec.io.images import check_images
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE, ImageScene, render_image_scene, sample_image_scene


def to_pixels(arrays: np.ndarray) -> Tensor:
    """Convert uint8 [B, H, W, 3] to float32 [B, 3, H, W] in -1..1."""
    return rearrange(torch.from_numpy(arrays), "b h w c -> b c h w").float().div_(127.5).sub_(1.0).contiguous()


def to_bytes(pixels: Tensor) -> np.ndarray:
    """Convert float [B, 3, H, W] in -1..1 to uint8 [B, H, W, 3]."""
    scaled = (pixels.detach().float().clamp(-1, 1) + 1) * 127.5
    return rearrange(scaled.round().to(torch.uint8), "b c h w -> b h w c").cpu().numpy()


def image_pixels(images: Sequence[Any] | np.ndarray | Tensor) -> Tensor:
    """Convert images, as `check_images` takes them, to float32 [B, 3, 64, 64] in -1..1. Other sizes are scaled by area.
    A uint8 tensor [B, 3, H, W] or [B, H, W, 3] stays on its device."""
    is_stack = isinstance(images, Tensor) and images.ndim == 4
    if not (is_stack and images.dtype == torch.uint8 and 3 in (images.shape[1], images.shape[-1])):
        pictures = check_images(images)
        if not pictures:
            raise ValueError("images: expected at least one picture, got none; pass a picture")
        if not is_stack:
            side = (IMAGE_SCENE_SIDE, IMAGE_SCENE_SIDE)
            pictures = [p if p.size == side else p.resize(side, Image.Resampling.BOX) for p in pictures]
        images = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))
    stacked = images if images.shape[1] == 3 else rearrange(images, "b h w c -> b c h w")
    pixels = stacked.float() / 127.5 - 1.0
    if pixels.shape[-2:] != (IMAGE_SCENE_SIDE, IMAGE_SCENE_SIDE):
        pixels = F.interpolate(pixels, size=(IMAGE_SCENE_SIDE, IMAGE_SCENE_SIDE), mode="area")
    return pixels.contiguous()


def sample_image_scenes(first_seed: int, count: int) -> list[ImageScene]:
    return [sample_image_scene(first_seed + index) for index in range(count)]


def image_arrays(pictures: Sequence[ImageScene]) -> np.ndarray:
    """Return rendered pictures, uint8 [B, 64, 64, 3]."""
    return np.stack([render_image_scene(picture) for picture in pictures])


def augment(pixels: Tensor, seed: int) -> Tensor:
    """Return pixels [B, 3, H, W] with typical damage by generators: shifts, blur, noise, brightness, flat blocks."""
    drawn = torch.Generator().manual_seed(seed)
    count, _, rows, columns = pixels.shape

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=drawn).to(pixels.device)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=drawn).to(pixels.device)

    down, right = (int(v) for v in torch.randint(0, 5, (2,), generator=drawn))
    out = F.pad(pixels, (2, 2, 2, 2), mode="replicate")[:, :, down : down + rows, right : right + columns]
    soft = F.avg_pool2d(F.pad(out, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    amount = (rand(count, 1, 1, 1) - 0.4).clamp(min=0) / 0.6  # two of five stay sharp
    out = out + amount * (soft - out)
    blocks = F.interpolate(randn(count, 3, rows // 4, columns // 4), scale_factor=4, mode="nearest")
    out = out + 0.06 * rand(count, 1, 1, 1) * blocks + 0.12 * rand(count, 1, 1, 1) * randn(count, 3, rows, columns)
    gain, lift = 1 + 0.12 * randn(count, 1, 1, 1).clamp(-2, 2), 0.05 * randn(count, 3, 1, 1)
    return (out * gain + lift).clamp(-1, 1)
