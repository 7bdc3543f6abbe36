"""The zoo's drafters: every name has a recipe, and a recipe builds what the loader loads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import mmspec
from mmspec.zoo.files.registry import read
from mmspec.zoo.training.vlm import build_drafter
from mmspec.zoo.training.vlm.build_drafter import build
from mmspec.zoo.training.vlm.drafter_recipes import RECIPES, TARGETS, DrafterRecipe
from tests.zoo.drafters import drafters_of


def test_every_drafter_of_the_zoo_has_a_recipe() -> None:
    assert {name for target in TARGETS for name in drafters_of(target)} == set(RECIPES)
    assert all(name in drafters_of(recipe.target) for name, recipe in RECIPES.items())
    assert {recipe.target for recipe in RECIPES.values()} == set(TARGETS)
    for target in TARGETS:  # equal training of all drafters of a target
        assert len({(recipe.steps, recipe.batch) for recipe in RECIPES.values() if recipe.target == target}) == 1


@pytest.mark.whole
@pytest.mark.slow
def test_a_recipe_builds_a_drafter_the_zoo_can_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "vlm", replace(TARGETS["vlm"], pictures=4, texts=4))
    recipe = DrafterRecipe("vispec", steps=3, batch=2, eval_every=0)
    card = build(tmp_path / "out", tmp_path / "work", mmspec.zoo.load("vlm"), "vlm/vispec", recipe)
    drafter = read("vlm/vispec", tmp_path / "out")
    assert card == json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["parameters"] == sum(p.numel() for p in drafter.parameters())
    assert card["training"]["loss"] > 0


@pytest.mark.whole
@pytest.mark.slow
def test_the_head_that_ends_drafts_is_built_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "vlm", replace(TARGETS["vlm"], pictures=4, texts=2))
    target, drafter = mmspec.zoo.load("vlm"), mmspec.zoo.load("vlm/eagle")
    card = build_drafter.build_acceptance_head(tmp_path / "out", tmp_path / "work", target, drafter, steps=3, batch=2)
    head = read("vlm/specdecpp", tmp_path / "out")
    assert card["parameters"] == sum(p.numel() for p in head.parameters()) and card["training"]["loss"] > 0
