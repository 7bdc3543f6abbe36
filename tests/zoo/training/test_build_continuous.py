"""A few steps of the zoo's models of continuous tokens, then what a reader of the files gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmspec import zoo
from mmspec.imagegen.continuous.kl import KLConfig, write_kl
from mmspec.imagegen.continuous.kl import build_kl as new_autoencoder
from mmspec.zoo.architectures.object_detector import ObjectDetector
from mmspec.zoo.files import registry
from mmspec.zoo.training.continuous import build_car, build_mar
from mmspec.zoo.training.continuous.build_kl import kl_config
from mmspec.zoo.training.continuous.recipe import FIRST_SEED, LatentRecipe, class_labels, scene_at
from mmspec.zoo.training.training_sets import ImageLatents
from mmspec.zoo.world.image import HELD_OUT

TINY = {"steps": 4, "batch": 2, "pictures": 4, "copies": 2, "again": 0}
MAR = replace(
    build_mar.target_recipe(),
    config=replace(build_mar.mar_config(16, 1, 2, 1, 16), num_sampling_steps="2"),
    **TINY | {"again": 2},
)
CAR = replace(build_car.target_recipe(), config=replace(build_car.car_config(16, 1, 2, 1, 16), head_steps=2), **TINY)


@pytest.fixture(scope="module")
def judge() -> ObjectDetector:
    return zoo.load("image_judge")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights folder with an untrained autoencoder, and the text-to-image model of the zoo."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    small = KLConfig(
        embed_dim=16,
        ch=4,
        ch_mult=(1, 1, 1, 1),
        num_res_blocks=1,
        encoder_attn_resolutions=(),
        resolution=64,
        norm_groups=2,
    )
    write_kl(new_autoencoder(small), folder / "kl")
    (folder / "t2i").symlink_to(registry.folder_of("t2i"))
    return folder


def made_up(count: int = 6) -> ImageLatents:
    torch.manual_seed(1)
    return ImageLatents(torch.randn(count, 64, 16).half(), torch.full((count, 64, 16), 0.1).half())


def test_the_masked_model_trains_and_draws_classes_and_prompts(
    tmp_path: Path, weights: Path, judge: ObjectDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "WEIGHTS", weights)
    card = build_mar.build(weights / "mar", tmp_path, weights / "kl", weights / "t2i", judge, MAR, measured=2)
    assert card == json.loads((weights / "mar" / "card.json").read_text())
    assert {"classes_recognised", "prompts_recognised_real"} <= card["evaluation"].keys()
    pipe = zoo.load("mar")
    assert card["parameters"] == sum(parameter.numel() for parameter in pipe.model.transformer.parameters())
    assert sorted(path.name for path in (tmp_path / "latents").iterdir()) == ["classes", "prompts"]
    for prompts in ([3, -1], ["a red star", "a blue ring at the top"]):
        out = pipe(prompts, seed=0, num_iter=2)
        assert [image.size for image in out.images] == [(64, 64)] * 2 and not out.errors
    assert pipe.model.transformer.mask_token.dtype == torch.float32


def test_the_causal_model_trains_and_draws_classes(
    tmp_path: Path, weights: Path, judge: ObjectDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "WEIGHTS", weights)
    card = build_car.build(weights / "car", tmp_path, weights / "kl", judge, CAR, measured=2)
    assert card == json.loads((weights / "car" / "card.json").read_text())
    out = zoo.load("car")([3, -1], seed=0)
    assert [image.size for image in out.images] == [(64, 64)] * 2 and not out.errors


def test_a_stopped_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    latents, captions = made_up(), build_mar.read_captions(registry.folder_of("t2i"))

    def mar(folder: Path) -> torch.nn.Module:
        return build_mar.train_mar(MAR, {"classes": latents, "prompts": latents}, captions, folder)[0]

    def car(folder: Path) -> torch.nn.Module:
        return build_car.train_car(CAR, latents, folder)[0]

    draws, plan = LatentRecipe.draws, LatentRecipe.plan

    def stopped(recipe: LatentRecipe, step: int) -> torch.Generator:
        if step == 2:
            raise KeyboardInterrupt
        return draws(recipe, step)

    for train in (mar, car):
        whole, folder = train(tmp_path / train.__name__ / "whole"), tmp_path / train.__name__ / "parted"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LatentRecipe, "plan", lambda recipe: replace(plan(recipe), save_every_s=0.0))
            patch.setattr(LatentRecipe, "draws", stopped)
            with pytest.raises(KeyboardInterrupt):
                train(folder)
        again = train(folder)
        for key, value in whole.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key


def test_labels_are_those_of_the_pictures() -> None:
    taken = torch.tensor([0, 63, 64, 130])
    assert class_labels(taken).tolist() == [scene_at("classes", i).items[0].label for i in taken.tolist()]


def test_recipes_fit_each_other_and_hold_out_the_evaluation_data() -> None:
    recipes = [build_mar.target_recipe(), build_mar.draft_recipe(), build_car.target_recipe(), build_car.draft_recipe()]
    sizes = {}
    for recipe in recipes:
        with torch.device("meta"):
            kind = build_mar.MAR if "mar" in recipe.name else build_car.CausalTransformer
            sizes[recipe.name] = sum(parameter.numel() for parameter in kind(recipe.config).parameters())
        assert recipe.config.tokens == 64
    assert sizes["mar"] > 3.5e6 and all(sizes[name] > 4 * sizes[f"{name}/draft"] for name in ("mar", "car"))
    assert (
        sum(sizes.values()) * 2 + sum(parameter.numel() for parameter in new_autoencoder(kl_config()).parameters()) * 2
        < 16e6
    )
    ends = [first + recipes[0].pictures for first in FIRST_SEED.values()]
    assert ends[0] < FIRST_SEED["prompts"] and ends[1] < HELD_OUT
    for wrong in ({"steps": 0}, {"pictures": 1}, {"drop": 1.0}, {"again": 18_000}):
        with pytest.raises(ValueError, match="expected"):
            replace(recipes[0], **wrong).plan()


def test_every_batch_of_a_set_is_used_once_for_any_order_of_the_sets() -> None:
    for again in (0, 7, 8):
        turns = [build_mar.turn(step, again) for step in range(40)]
        for kind in build_mar.KINDS:
            numbers = [number for turn, number in turns if turn == kind]
            assert numbers == list(range(len(numbers)))
        assert sum(kind == "classes" for kind, _ in turns[8:]) == {0: 16, 7: 24, 8: 24}[again]


def test_a_schedule_that_runs_again_ends_as_it_ended_the_first_time() -> None:
    plan = build_mar.target_recipe(steps=40, again=20).plan()
    once, twice = replace(plan, steps=20, again=0), plan
    assert [twice.lr_at(step) for step in range(40)] == [once.lr_at(step) for step in range(20)] * 2
