"""Batches of pictures as tensors, and their augmentation: the small damage that readers of pictures are trained against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...world.pictures import Picture, render_picture, sample_picture


def sample_pictures(first_seed: int, count: int) -> list[Picture]:
    """The pictures of `count` seeds from `first_seed` on."""
    return [sample_picture(first_seed + index) for index in range(count)]


def picture_arrays(pictures: Sequence[Picture]) -> np.ndarray:
    """uint8 [B, 64, 64, 3]."""
    return np.stack([render_picture(picture) for picture in pictures])


def augmented(pixels: Tensor, seed: int) -> Tensor:
    """`pixels` [B, 3, H, W] with what a tokenizer or a generator may do: shifts, blur, noise, brightness, flat blocks."""
    drawn = torch.Generator().manual_seed(seed)
    count, _, rows, columns = pixels.shape

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=drawn).to(pixels.device)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=drawn).to(pixels.device)

    down, right = (int(v) for v in torch.randint(0, 5, (2,), generator=drawn))
    out = F.pad(pixels, (2, 2, 2, 2), mode="replicate")[:, :, down : down + rows, right : right + columns]
    soft = F.avg_pool2d(F.pad(out, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    amount = (rand(count, 1, 1, 1) - 0.4).clamp(min=0) / 0.6  # two in five stay sharp
    out = out + amount * (soft - out)
    blocks = F.interpolate(randn(count, 3, rows // 4, columns // 4), scale_factor=4, mode="nearest")
    out = out + 0.06 * rand(count, 1, 1, 1) * blocks + 0.12 * rand(count, 1, 1, 1) * randn(count, 3, rows, columns)
    gain, lift = 1 + 0.12 * randn(count, 1, 1, 1).clamp(-2, 2), 0.05 * randn(count, 3, 1, 1)
    return (out * gain + lift).clamp(-1, 1)
