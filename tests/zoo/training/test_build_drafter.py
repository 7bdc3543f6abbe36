"""The zoo's drafters: every name has a recipe, and a recipe builds what the loader loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mmspec
from mmspec.zoo.files.registry import DRAFTERS, LOADERS
from mmspec.zoo.training import build_drafter
from mmspec.zoo.training.build_drafter import RECIPES, DrafterRecipe, build
from mmspec.zoo.training.drafter_requests import HeldOut, Pictures, Texts
from mmspec.zoo.world.scene import EVAL_START


def test_every_drafter_of_the_zoo_has_a_recipe() -> None:
    assert {f"vlm/{name}" for name in DRAFTERS} == set(RECIPES)
    assert len({(recipe.steps, recipe.batch) for recipe in RECIPES.values()}) == 1  # equal training


@pytest.mark.slow
def test_a_recipe_builds_a_drafter_the_zoo_can_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_drafter, "PICTURES", 4)
    monkeypatch.setattr(build_drafter, "TEXTS", 4)
    recipe = DrafterRecipe("vispec", steps=3, batch=2, eval_every=0)
    card = build("vlm/vispec", recipe, mmspec.zoo.load("vlm"), tmp_path / "out", tmp_path / "work")
    drafter = LOADERS["vlm/vispec"](tmp_path / "out")
    assert card == json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["parameters"] == sum(p.numel() for p in drafter.parameters())
    assert card["training"]["loss"] > 0


def test_requests_are_pure_functions_of_their_index() -> None:
    for stream in (Pictures(300), Texts(8), HeldOut()):
        one, two = stream[3], stream[3]
        assert (one.key, one.text, one.answer) == (two.key, two.text, two.answer)
        assert [image.tobytes() for image in one.images] == [image.tobytes() for image in two.images]
        with pytest.raises(IndexError):
            stream[len(stream)]
    counts = {len(Pictures(300)[index].images) for index in (0, 84, 85, 276)}
    assert counts == {1, 2, 3, 6}


def test_held_out_pictures_come_from_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    import mmspec.zoo.training.drafter_requests as lessons

    seen: list[int] = []
    sample = lessons.sample_scene
    monkeypatch.setattr(lessons, "sample_scene", lambda seed: seen.append(seed) or sample(seed))
    HeldOut()[0]
    assert min(seen) >= EVAL_START
    seen.clear()
    Pictures(300)[0], Texts(8)[0], Pictures(300)[276]
    assert max(seen) < EVAL_START
