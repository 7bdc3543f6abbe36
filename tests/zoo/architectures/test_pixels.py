"""Pixels of pictures, and what else is taken for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmspec.zoo.architectures.pixels import image_pixels, to_bytes, to_pixels
from mmspec.zoo.training.pictures.picture_batches import picture_arrays, sample_pictures


def test_pixels_and_bytes_are_each_others_inverse() -> None:
    whole = picture_arrays(sample_pictures(0, 3))
    pixels = to_pixels(whole)
    assert pixels.shape == (3, 3, 64, 64) and np.array_equal(to_bytes(pixels), whole)
    assert torch.equal(image_pixels(torch.from_numpy(whole)), image_pixels(torch.from_numpy(whole).permute(0, 3, 1, 2)))
    torch.testing.assert_close(image_pixels(torch.from_numpy(whole)), pixels)
    with pytest.raises(ValueError, match="expected a uint8 tensor"):
        image_pixels(pixels)
