"""Recipes and sizes are checked where they are made, and pictures of two steps are never the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmspec.zoo.architectures.clip import ClipSize
from mmspec.zoo.training.pictures import build_clip, build_judge
from mmspec.zoo.training.pictures.build_vq import VqRecipe
from mmspec.zoo.training.pictures.on_pictures import PictureRecipe
from mmspec.zoo.training.pictures.picture_batches import sample_pictures
from mmspec.zoo.world.pictures import HELD_OUT


def test_recipes_are_checked() -> None:
    for make in (
        lambda: VqRecipe(steps=40),
        lambda: replace(build_clip.SHIPPED, batch=0),
        lambda: replace(build_judge.SHIPPED, steps=0),
        lambda: ClipSize(width=3),
    ):
        with pytest.raises(ValueError, match="expected"):
            make()


@pytest.mark.parametrize("shipped", [build_clip.SHIPPED, build_judge.SHIPPED], ids=["clip", "judge"])
def test_steps_share_no_picture_and_none_is_held_out(shipped: PictureRecipe) -> None:
    recipe = replace(shipped, steps=3, batch=2)
    first, last = recipe.facts()["picture_seeds"]
    drawn = [picture for step in range(recipe.steps) for picture in recipe.pictures(step)]
    assert drawn == sample_pictures(first, last - first)
    assert shipped.facts()["picture_seeds"][1] < HELD_OUT
    assert recipe.plan().warmup == 1
