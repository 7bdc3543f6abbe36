"""Recipes and sizes are checked where they are made."""

from __future__ import annotations

import pytest

from mmspec.zoo.architectures.clip import ClipSize
from mmspec.zoo.training.build_clip import ClipRecipe
from mmspec.zoo.training.build_judge import JudgeRecipe
from mmspec.zoo.training.build_vq import VqRecipe


def test_recipes_are_checked() -> None:
    for make in (
        lambda: VqRecipe(steps=40),
        lambda: ClipRecipe(batch=1),
        lambda: JudgeRecipe(steps=0),
        lambda: ClipSize(width=3),
    ):
        with pytest.raises(ValueError, match="expected"):
            make()
