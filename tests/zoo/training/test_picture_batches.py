"""Augmentation, the small damage that readers of pictures are trained against."""

from __future__ import annotations

import torch

from mmspec.zoo.architectures.pixels import to_pixels
from mmspec.zoo.training.pictures.picture_batches import augmented, picture_arrays, sample_pictures


def test_augmentation_is_light_and_a_function_of_its_seed() -> None:
    pixels = to_pixels(picture_arrays(sample_pictures(0, 8)))
    once = augmented(pixels, 5)
    assert torch.equal(once, augmented(pixels, 5)) and not torch.equal(once, augmented(pixels, 6))
    assert once.abs().max() <= 1 and 0.01 < (once - pixels).abs().mean() < 0.35
