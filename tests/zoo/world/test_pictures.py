"""Pictures for image generation and the prompts that ask for them."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.zoo.world.image import (
    CLASSES,
    IMAGE_SCENE_SIDE,
    LONGEST,
    PLACES,
    class_image_scene,
    class_names,
    image_prompt,
    image_prompt_tokenizer,
    low_res,
    named_objects,
    render_image_scene,
    sample_image_scene,
)
from mmspec.zoo.world.pixels import image_arrays, sample_image_scenes
from mmspec.zoo.world.scene import BACKDROPS, COLORS, EVAL_START, SHAPES, TONES

SEEDS = [*range(150), *range(EVAL_START, EVAL_START + 150)]


def test_everything_is_a_function_of_the_seed() -> None:
    for seed in SEEDS[::50]:
        one, two = sample_image_scene(seed), sample_image_scene(seed)
        assert one == two and np.array_equal(render_image_scene(one), render_image_scene(two))
        assert image_prompt(one, 3) == image_prompt(two, 3)
        assert class_image_scene(5, seed) == class_image_scene(5, seed)
    assert len({image_prompt(sample_image_scene(1), seed) for seed in range(20)}) > 5


def test_evaluation_pictures_are_no_training_pictures() -> None:
    train = {sample_image_scene(seed).background.phase for seed in SEEDS[:150]}
    assert not train & {sample_image_scene(seed).background.phase for seed in SEEDS[150:]}
    for make in (sample_image_scene, lambda seed: class_image_scene(0, seed)):
        with pytest.raises(ValueError, match="TRAIN_SEEDS or EVAL_SEEDS"):
            make(-1)


def test_objects_lie_inside_apart_and_at_their_stated_places() -> None:
    counts = []
    for seed in SEEDS:
        picture = sample_image_scene(seed)
        assert render_image_scene(picture).shape == (IMAGE_SCENE_SIDE, IMAGE_SCENE_SIDE, 3)
        counts.append(len(picture.items))
        covered = np.zeros((IMAGE_SCENE_SIDE, IMAGE_SCENE_SIDE), dtype=int)
        for item in picture.items:
            assert 0 <= item.x and item.x + item.pixels <= IMAGE_SCENE_SIDE
            assert 0 <= item.y and item.y + item.pixels <= IMAGE_SCENE_SIDE
            covered[item.y : item.y + item.pixels, item.x : item.x + item.pixels] += 1
            row, column = divmod(PLACES.index(item.place), 3)
            for stop, start in ((row, item.y), (column, item.x)):
                least, most = ((-32, -2), (-6, 6), (2, 32))[stop]
                assert least <= start + item.pixels / 2 - IMAGE_SCENE_SIDE / 2 <= most
        assert covered.max() == 1
        assert len({item.label for item in picture.items}) == len(picture.items)
    assert set(counts) == {1, 2} and 0.25 < np.mean(counts) - 1 < 0.55


def test_classes_name_the_drawn_object() -> None:
    names = class_names()
    assert len(names) == len(set(names)) == CLASSES
    for label in range(CLASSES):
        (item,) = class_image_scene(label, EVAL_START + label).items
        assert item.label == label and names[label] == f"{item.color} {item.shape}"
    with pytest.raises(ValueError, match="label: expected a class from 0 to 63"):
        class_image_scene(64, 0)


def test_prompts_name_every_object_and_fit_the_tokenizer() -> None:
    tokenizer = image_prompt_tokenizer()
    for seed in SEEDS:
        picture = sample_image_scene(seed)
        prompt = image_prompt(picture, seed)
        assert sorted(named_objects(prompt)) == sorted((item.shape, item.color) for item in picture.items)
        ids = tokenizer(prompt)["input_ids"]
        assert len(ids) <= LONGEST and ids[-1] == tokenizer.eos_token_id and tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == prompt


def test_prompts_say_no_more_than_the_picture_shows() -> None:
    for seed in SEEDS:
        picture = sample_image_scene(seed)
        words = set(image_prompt(picture, seed).split())
        textures = {picture.background.texture, *(item.texture for item in picture.items)}
        assert words & set(TONES) <= {picture.background.tone}
        assert words & {*BACKDROPS, "dotted"} <= textures
        assert words & {"small", "large"} <= {item.size for item in picture.items}


def test_every_shape_and_color_comes_up() -> None:
    items = [item for seed in SEEDS for item in sample_image_scene(seed).items]
    assert {item.shape for item in items} == set(SHAPES) and {item.color for item in items} == set(COLORS)


def test_half_the_side_is_the_mean_of_boxes() -> None:
    whole = image_arrays(sample_image_scenes(0, 2))
    half = low_res(whole)
    assert half.shape == (2, 32, 32, 3) and half.dtype == np.uint8
    assert np.array_equal(half[1], low_res(whole[1]))
    assert np.abs(half[:, 3, 4].astype(float) - whole[:, 6:8, 8:10].mean((1, 2))).max() <= 0.5
