"""Augmentation, the small damage that readers of pictures are trained against."""

from __future__ import annotations

import torch

from mmspec.zoo.world.pixels import augment, image_arrays, sample_image_scenes, to_pixels


def test_augmentation_is_light_and_a_function_of_its_seed() -> None:
    pixels = to_pixels(image_arrays(sample_image_scenes(0, 8)))
    once = augment(pixels, 5)
    assert torch.equal(once, augment(pixels, 5)) and not torch.equal(once, augment(pixels, 6))
    assert once.abs().max() <= 1 and 0.01 < (once - pixels).abs().mean() < 0.35
