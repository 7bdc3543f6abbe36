"""Pixels of pictures, and what else is taken for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mmspec
from mmspec.zoo.world.pixels import image_arrays, image_pixels, sample_image_scenes, to_bytes, to_pixels


def test_pixels_and_bytes_are_each_others_inverse() -> None:
    whole = image_arrays(sample_image_scenes(0, 3))
    pixels = to_pixels(whole)
    assert pixels.shape == (3, 3, 64, 64) and np.array_equal(to_bytes(pixels), whole)
    assert torch.equal(image_pixels(torch.from_numpy(whole)), image_pixels(torch.from_numpy(whole).permute(0, 3, 1, 2)))
    torch.testing.assert_close(image_pixels(torch.from_numpy(whole)), pixels)
    with pytest.raises(ValueError, match="expected pixels from 0 to 255"):
        image_pixels(pixels)


def test_a_text_is_a_prompt_and_prompts_are_as_many_as_images() -> None:
    clip, image = mmspec.zoo.load("clip"), image_arrays(sample_image_scenes(0, 1))
    assert torch.equal(clip.encode_texts("a red circle"), clip.encode_texts(["a red circle"]))
    with pytest.raises(ValueError, match="prompts: expected 1, one for each image, got 2"):
        clip.score(image, ["a red circle", "a blue square"])
    for wrong in ([], [3], None, 3):
        with pytest.raises(ValueError, match="prompts: expected texts, got"):
            clip.encode_texts(wrong)
    with pytest.raises(ValueError, match="images: expected at least one picture"):
        clip.encode_images([])
    with pytest.raises(ValueError, match="batch: expected at least 1"):
        clip.encode_images(image, batch=0)
