"""Recipes and sizes are checked where they are made, and pictures of two steps are never the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmspec.zoo.architectures.clip import ClipSize
from mmspec.zoo.training.image import build_scorers
from mmspec.zoo.training.image.build_vq import VqRecipe
from mmspec.zoo.training.image.recipe import ImageRecipe
from mmspec.zoo.world.image import HELD_OUT
from mmspec.zoo.world.pixels import sample_image_scenes


def test_recipes_are_checked() -> None:
    for make in (
        lambda: VqRecipe(steps=40),
        lambda: replace(build_scorers.CLIP_RECIPE, batch=0),
        lambda: replace(build_scorers.DETECTOR_RECIPE, steps=0),
        lambda: ClipSize(width=3),
    ):
        with pytest.raises(ValueError, match="expected"):
            make()


@pytest.mark.parametrize("shipped", [build_scorers.CLIP_RECIPE, build_scorers.DETECTOR_RECIPE], ids=["clip", "judge"])
def test_steps_share_no_picture_and_none_is_held_out(shipped: ImageRecipe) -> None:
    recipe = replace(shipped, steps=3, batch=2)
    first, last = recipe.seeds()["picture_seeds"]
    drawn = [picture for step in range(recipe.steps) for picture in recipe.pictures(step)]
    assert drawn == sample_image_scenes(first, last - first)
    assert shipped.seeds()["picture_seeds"][1] < HELD_OUT
    assert recipe.plan().warmup == 1
