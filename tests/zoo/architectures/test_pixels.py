"""Pixels of pictures, and what else is taken for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmspec.zoo.world.pixels import image_arrays, image_pixels, sample_image_scenes, to_bytes, to_pixels


def test_pixels_and_bytes_are_each_others_inverse() -> None:
    whole = image_arrays(sample_image_scenes(0, 3))
    pixels = to_pixels(whole)
    assert pixels.shape == (3, 3, 64, 64) and np.array_equal(to_bytes(pixels), whole)
    assert torch.equal(image_pixels(torch.from_numpy(whole)), image_pixels(torch.from_numpy(whole).permute(0, 3, 1, 2)))
    torch.testing.assert_close(image_pixels(torch.from_numpy(whole)), pixels)
    with pytest.raises(ValueError, match="expected pixels from 0 to 255"):
        image_pixels(pixels)
