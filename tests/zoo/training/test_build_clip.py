"""The zoo's CLIP: a few steps of training, then what a reader of the files gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmspec.zoo.architectures.clip import ClipSize, new_clip
from mmspec.zoo.files.registry import read
from mmspec.zoo.training.image.build_scorers import (
    CLIP_RECIPE,
    build_clip,
    contrasted_pairs,
    recompute_norm_statistics,
    train_clip,
)
from mmspec.zoo.world.image import image_prompt
from mmspec.zoo.world.pixels import image_arrays, sample_image_scenes


@pytest.mark.whole
def test_clip_trains_and_its_files_load(tmp_path: Path) -> None:
    size = ClipSize(space=16, width=4, layers=(1, 1, 1, 1), text_width=24, text_layers=1, text_heads=2)
    card = build_clip(tmp_path, tmp_path / "work", replace(CLIP_RECIPE, steps=2, batch=4), size=size, measured=1)
    assert card["evaluation"]["text_top1"] <= 1 and card["training"]["loss"] > 0
    clip = read("clip", tmp_path)
    pictures = sample_image_scenes(0, 3)
    arrays = image_arrays(pictures)
    features = clip.encode_images(torch.from_numpy(arrays))
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(clip.encode_images([Image.fromarray(array) for array in arrays]), features)
    prompts = [image_prompt(picture, 0) for picture in pictures]
    paired = (features * clip.encode_texts(prompts)).sum(-1)
    torch.testing.assert_close(clip.score(torch.from_numpy(arrays), prompts), paired)


def test_pairs_that_ask_for_the_same_are_not_contrasted() -> None:
    pictures = [sample_image_scenes(seed, 1)[0] for seed in (1, 1, 2)]
    apart = contrasted_pairs(pictures, ["x", "x", "x"])
    assert apart.diagonal().all() and not apart[0, 1] and apart[0, 2]


@pytest.mark.whole
def test_the_norms_of_clip_are_a_function_of_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.training.image.build_scorers.NORM_BATCHES", 3)
    clip = new_clip(ClipSize(space=16, width=4, layers=(1, 1, 1, 1), text_width=24, text_layers=1, text_heads=2))
    recipe, states = replace(CLIP_RECIPE, steps=1, batch=2), []
    for _ in range(2):
        recompute_norm_statistics(clip, recipe, "cpu")
        states.append({name: value.clone() for name, value in clip.named_buffers() if "running" in name})
    assert states[0] and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_batch_of_one_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected at least two pictures to tell apart, got 1"):
        train_clip(new_clip(ClipSize(layers=(1, 1, 1, 1), width=4)), tmp_path, replace(CLIP_RECIPE, batch=1))
